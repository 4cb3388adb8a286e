"""Loads a checkpoint into a model's parameters, dequantising it if needed.

Presence, shape and dtype of every tensor are checked from the files' headers before any memory is
allocated. Also owns the digest that identifies an engine's weights.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from quire.core.errors import ModelFormatError, UnsupportedModel
from quire.engine.checkpoint.model_directory import ModelDirectory
from quire.engine.checkpoint.shards import Shards
from quire.engine.layers.parameters import Destination
from quire.engine.quantization.scheme import FLOATS, Scheme, Shape, StoredPart

Progress = Callable[[int, int], None]
"""Called with (tensors loaded, total)."""

_DERIVED = re.compile(r".*rotary_emb\.inv_freq$")
"""Buffers of old checkpoints that a model computes itself."""

_PLAIN = "plain"
_CHECKED_ELEMENTS = 1 << 24
"""A tensor is checked in pieces, so that a large one needs no second copy."""

_WHOLE_HASH_BYTES = 4 << 30
_SAMPLE_BYTES, _SAMPLE_EVERY = 1 << 20, 64 << 20


class Checkpoint:
    """The weights of one model directory. A context manager that closes its files.

    ``scheme``: how weights are packed, None if they are plain.
    """

    def __init__(self, directory: ModelDirectory, scheme: Scheme | None = None) -> None:
        self.directory = directory
        self._scheme = scheme
        self._shards = Shards(directory)

    def __enter__(self) -> Checkpoint:
        self._shards.__enter__()
        return self

    def __exit__(self, *exc: object) -> None:
        self._shards.__exit__(*exc)

    @property
    def files(self) -> list[Path]:
        return self._shards.files

    def check(
        self,
        wanted: Mapping[str, Destination],
        ignored: Callable[[str], bool] = lambda name: False,
    ) -> None:
        """Compare names, shapes and dtypes with the model's; reads headers only.

        ``ignored``: stored tensors that the model knows but does not need.

        Raises:
            ModelFormatError: tensors missing, unexpected or of another shape, all named.
            UnsupportedModel: a dtype that is neither a plain float nor the scheme's.
        """
        parts = {
            part.name: part
            for name, destination in wanted.items()
            for part in self._parts(name, destination.shape).values()
        }
        stored = self._shards.headers
        missing = sorted(parts.keys() - stored.keys())
        unexpected = sorted(
            name
            for name in stored.keys() - parts.keys()
            if not (ignored(name) or self._can_stay_unread(name))
        )
        if missing or unexpected:
            raise ModelFormatError(
                f"{self.directory.path} has{_listing('missing', missing)}"
                f"{' and' if missing and unexpected else ''}"
                f"{_listing('unexpected', unexpected)}: the weights do not belong to this "
                "config.json, or the download is incomplete"
            )
        for part in parts.values():
            self._check_part(part)

    def has_any(self, prefix: str) -> bool:
        """Whether any stored tensor's name begins with ``prefix``."""
        return any(name.startswith(prefix) for name in self._shards.headers)

    def dtype_of(self, name: str) -> torch.dtype:
        """The dtype in which the checkpoint stores tensor ``name``."""
        dtypes = {"F16": torch.float16, "BF16": torch.bfloat16}
        return dtypes.get(self._shards.headers[name].dtype, torch.float32)

    def load(
        self, destinations: Mapping[str, Destination], progress: Progress | None = None
    ) -> None:
        """Copy every destination's tensor into it, converted to its dtype. Requires ``check``.

        Raises:
            ModelFormatError: a tensor that cannot be read, or is not finite in the dtype served.
        """
        for count, (name, destination) in enumerate(destinations.items(), start=1):
            plain = self._plain(name, destination.shape)
            destination.fill(plain)
            if not _is_finite(destination.target):
                raise self._not_finite(name, plain, destination.target.dtype)
            if progress is not None:
                progress(count, len(destinations))

    def _parts(self, name: str, shape: Shape) -> dict[str, StoredPart]:
        """The stored tensors that make up ``name``, by role."""
        if self._scheme is not None:
            parts = self._scheme.parts(name, shape, self._shards.headers)
            if parts is not None:
                return parts
        return {_PLAIN: StoredPart(name, shape, FLOATS)}

    def _plain(self, name: str, shape: Shape) -> Tensor:
        parts = self._parts(name, shape)
        if self._scheme is None or _PLAIN in parts:
            return self._shards.read(name)
        stored = {role: self._shards.read(part.name) for role, part in parts.items()}
        return self._scheme.dequantize(name, shape, stored)

    def _check_part(self, part: StoredPart) -> None:
        header = self._shards.headers[part.name]
        if header.shape != part.shape:
            raise ModelFormatError(
                f"{self.directory.path}: tensor {part.name!r} has shape {list(header.shape)}, "
                f"config.json asks for {list(part.shape)}: they do not belong together"
            )
        if header.dtype not in part.dtypes:
            wanted = ", ".join(sorted(part.dtypes))
            raise UnsupportedModel(
                f"{self.directory.path}: tensor {part.name!r} has dtype {header.dtype}; served "
                f"are {wanted} with this quantization_config: use an unquantised checkpoint, or "
                "one whose config.json says how it is quantised"
            )

    def _can_stay_unread(self, name: str) -> bool:
        if _DERIVED.fullmatch(name):
            return True
        if self._scheme is None:
            return False
        if self._scheme.unread.fullmatch(name):
            return True
        # some quantisers add a zero bias to projections of models without biases
        return name.endswith(".bias") and not self._shards.read(name).any()

    def _not_finite(self, name: str, stored: Tensor, served: torch.dtype) -> ModelFormatError:
        if _is_finite(stored):
            return ModelFormatError(
                f"{self.directory.path}: tensor {name!r} has values beyond the range of {served}, "
                "which would be infinite: serve it as bfloat16 or float32"
            )
        return ModelFormatError(
            f"{self.directory.path}: tensor {name!r} has values that are NaN or infinite: "
            "the checkpoint is damaged; download or export it again"
        )


def _is_finite(tensor: Tensor) -> bool:
    if tensor.sum().isfinite():
        # a sum is not finite if any value is not, and is much faster than checking each value
        return True
    step = max(1, _CHECKED_ELEMENTS // max(1, tensor[:1].numel()))
    return all(
        bool(torch.isfinite(tensor[row : row + step]).all()) for row in range(0, len(tensor), step)
    )


_NUM_LISTED = 5


def _listing(kind: str, names: list[str]) -> str:
    if not names:
        return ""
    num_more = len(names) - _NUM_LISTED
    more = f" and {num_more} more" if num_more > 0 else ""
    listed = ", ".join(names[:_NUM_LISTED])
    return f" {len(names)} {kind} tensor{'s'[: len(names) > 1]} ({listed}{more})"


def weights_digest(
    files: list[Path], config: Mapping[str, Any], settings: Mapping[str, Any]
) -> str:
    """SHA-256 (hex) of everything that K and V depend on: config, weights, the engine's settings.

    Up to 4 GiB of shards are hashed whole. Beyond that, their sizes and 1 MiB of every 64 MiB
    (which includes the header) are hashed, so that a large model does not take a minute longer to
    start.
    """
    digest = hashlib.sha256(json.dumps([config, settings], sort_keys=True).encode())
    whole = sum(path.stat().st_size for path in files) <= _WHOLE_HASH_BYTES
    for path in files:
        digest.update(f"{path.name}:{path.stat().st_size}".encode())
        with path.open("rb") as file:
            while chunk := file.read(_SAMPLE_BYTES):
                digest.update(chunk)
                if not whole:
                    file.seek(_SAMPLE_EVERY - _SAMPLE_BYTES, 1)
    return digest.hexdigest()
