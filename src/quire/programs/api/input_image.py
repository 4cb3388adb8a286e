"""Trait InputImage: embeddings of images. Served by the engine, for models that take images."""

from __future__ import annotations

from collections.abc import Sequence

from quire.core.commands import EmbedImage
from quire.core.engine_info import ImageInput
from quire.core.errors import InvalidArgument, TraitMissing
from quire.core.traits import Trait
from quire.programs.api.handles import Embed, Queue, as_list, check_all
from quire.programs.api.issuer import nothing
from quire.programs.api.model import Model
from quire.programs.api.queued import TraitFunctions, queued
from quire.programs.api.reply import Reply

_SIGNATURES = {"PNG": b"\x89PNG\r\n\x1a\n", "JPEG": b"\xff\xd8\xff"}
"""The first bytes of each file format."""


class InputImageFunctions(TraitFunctions):
    trait = Trait.INPUT_IMAGE

    def num_embs_needed(self, image: bytes | tuple[int, int], model: Model | None = None) -> int:
        """The number of embeds that `embed_img` writes for ``image``, the bytes of its file or its
        (width, height) in pixels; ``model``: by default the node's default model.

        Raises:
            InvalidArgument: a size that the model does not take, or not a PNG or JPEG file.
            TraitMissing: the model takes no images.
        """
        served = model.served if model is not None else self._issuer.model()
        images = served.info.images
        if images is None:
            raise TraitMissing(
                f"model {served.id!r} does not have the trait {Trait.INPUT_IMAGE}: choose a model "
                "that takes images"
            )
        if isinstance(image, bytes):
            check_image(image, images)
        elif min(image) < 1 or image[0] * image[1] > images.max_pixels:
            raise InvalidArgument(
                f"an image of {image[0]} x {image[1]} pixels; the model takes 1 to "
                f"{images.max_pixels} pixels"
            )
        return images.num_embeds

    @queued
    def embed_img(
        self,
        queue: Queue,
        image: bytes,
        embs: Embed | Sequence[Embed],
        positions: Sequence[int],
    ) -> Reply[None]:
        """Write the embeddings of ``image``, the bytes of a PNG or JPEG file, into ``embs`` at
        ``positions``: ``num_embs_needed(image)`` of both, in row order of the picture.

        Raises:
            InvalidArgument: another number of embeds or positions, not a PNG or JPEG file, too many
                bytes; when awaited: a damaged file, too many pixels.
            UnknownHandle: a handle that this program does not hold.
        """
        embeds = as_list(embs)
        check_all(self._issuer, embeds, Embed)
        images = queue.state.model.info.images
        if images is not None:
            check_image(image, images)
            if not len(embeds) == len(positions) == images.num_embeds:
                raise InvalidArgument(
                    f"{len(embeds)} embeds and {len(positions)} positions for an image that takes "
                    f"{images.num_embeds}: ask num_embs_needed"
                )
        for embed, position in zip(embeds, positions, strict=True):
            embed.position = position
        command = EmbedImage(
            id=self._issuer.command_id(),
            after=queue.dependencies,
            image=bytes(image),
            positions=list(positions),
            embeds=[embed.embed_id for embed in embeds],
        )
        return self._issuer.submit(queue, command, nothing)


def check_image(image: bytes, images: ImageInput) -> None:
    """Raise ``InvalidArgument`` if the first bytes are not those of an image format, or the file is
    too large."""
    if not any(image.startswith(_SIGNATURES[name]) for name in images.formats):
        raise InvalidArgument(
            f"the file of {len(image)} bytes is not a {' or '.join(images.formats)} image: convert "
            "it"
        )
    if len(image) > images.max_bytes:
        raise InvalidArgument(
            f"the image has {len(image)} bytes; at most {images.max_bytes} are allowed: make it "
            "smaller"
        )
