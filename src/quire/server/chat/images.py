"""Images of a conversation: reads ``data:`` URLs, and expands the prompt by the images' tokens.

Owns the accepted forms of an image. Nothing is fetched: a node that opened its clients' URLs would
reach hosts that the clients cannot. The file itself is decoded later.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Sequence
from typing import Any

from quire.core.engine_info import ImageInput
from quire.core.errors import InvalidArgument, PromptTooLong, QuireError
from quire.programs.api.input_image import check_image
from quire.programs.builtin import PromptImage
from quire.server.schemas.messages import MediaPart

_DATA_URL = re.compile(r"data:image/(?:png|jpeg|jpg);base64,", re.IGNORECASE)


class ImageReader:
    """Reads the images of one request; ``files`` are in the order of the conversation.
    ``accepted``: the image input of the model, ``None`` for a text model."""

    def __init__(self, accepted: ImageInput | None) -> None:
        self.accepted = accepted
        self.files: list[bytes] = []

    def read(self, part: MediaPart, param: str) -> dict[str, Any]:
        """Return the part for a chat template; its ``sha256`` is used by the server alone.

        Raises:
            InvalidArgument: the model reads no images, or the URL has no image data.
        """
        if self.accepted is None:
            raise InvalidArgument(
                f"{param} is of type {part.type}, but this model reads text only", param=param
            )
        if part.type != "image_url":
            raise InvalidArgument(
                f"{param} is of type {part.type}, but this model reads text and images only",
                param=param,
            )
        file = read_image(part.url, self.accepted, param, f"{param}.image_url")
        self.files.append(file)
        return {"type": "image", "sha256": hashlib.sha256(file).hexdigest()}


def read_image(url: str | None, accepted: ImageInput, param: str, url_param: str) -> bytes:
    """Return the content of the image file that ``url`` carries.

    Raises:
        InvalidArgument: it carries none that the model accepts.
    """
    file = _file_of(url, url_param)
    try:
        check_image(file, accepted)
    except QuireError as exc:
        raise InvalidArgument(f"{param}: {exc.message}", param=param) from exc
    return file


def _file_of(url: str | None, param: str) -> bytes:
    if url is None:
        raise InvalidArgument(f"{param} has no url", param=param)
    head = _DATA_URL.match(url)
    if head is None:
        raise InvalidArgument(
            f"{param} is {url[:60]!r}: images are taken as data URLs of PNG and JPEG files, "
            "data:image/png;base64,...; nothing is fetched",
            param=param,
        )
    try:
        return base64.b64decode(url[head.end() :], validate=True)
    except (binascii.Error, ValueError) as exc:
        raise InvalidArgument(f"{param} is not base64: {exc}", param=param) from exc


def expand_images(
    token_ids: Sequence[int], files: Sequence[bytes], accepted: ImageInput | None, limit: int
) -> tuple[tuple[int, ...], tuple[PromptImage, ...]]:
    """Return the prompt with each image's placeholder repeated to its number of tokens, and the
    place of each image.

    Raises:
        InvalidArgument: the rendered prompt has another number of images than the conversation.
        PromptTooLong: it has more than ``limit`` tokens; it is then not built, because a request of
            many small files would take hundreds of times its own size.
    """
    if accepted is None:
        return tuple(token_ids), ()
    found = sum(token == accepted.token for token in token_ids)
    if found != len(files):
        raise InvalidArgument(
            f"the model's chat template shows {found} images where the messages have "
            f"{len(files)}: its token for images may not stand in text"
        )
    num_tokens = len(token_ids) + found * (accepted.num_embeds - 1)
    if num_tokens > limit:
        raise PromptTooLong(
            f"the prompt has {num_tokens} tokens, {accepted.num_embeds} for each of {found} "
            f"images, but a prompt has at most {limit}: send fewer images or less text",
            num_prompt_tokens=num_tokens,
            max_model_len=limit,
        )
    expanded: list[int] = []
    images = []
    rest = iter(files)
    for token in token_ids:
        if token == accepted.token:
            images.append(PromptImage(len(expanded), accepted.num_embeds, next(rest)))
            expanded += [token] * accepted.num_embeds
        else:
            expanded.append(token)
    return tuple(expanded), tuple(images)
