"""Loads safetensors checkpoints into a model's parameters; trusts neither index nor shards.

Presence, shape and dtype of every tensor are checked from the shards' headers before any memory is
allocated. Pickles are never opened. Owns also the digest that identifies an engine's weights.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from quire.core.errors import ModelFormatError, UnsupportedModel
from quire.engine.layers.parameters import Destination
from quire.engine.model_directory import ModelDirectory

Progress = Callable[[int, int], None]
"""Called with (tensors loaded, tensors in all)."""

_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"
_DERIVED = re.compile(r".*rotary_emb\.inv_freq$")
"""Buffers of old checkpoints that a model computes by itself."""

_DTYPES = {"F64", "F32", "F16", "BF16"}
_CHECKED_ELEMENTS = 1 << 24
"""A tensor is looked through in pieces, so that a large one needs no second copy of itself."""

_WHOLE_HASH_BYTES = 4 << 30
_SAMPLE_BYTES, _SAMPLE_EVERY = 1 << 20, 64 << 20


class Checkpoint:
    """The shards of one model directory. Use as a context manager; closes them at the end."""

    def __init__(self, directory: ModelDirectory) -> None:
        self.directory = directory
        self._names_by_file = _tensor_files(directory)
        self._stack = ExitStack()
        self._shards: dict[str, Any] = {}

    def __enter__(self) -> Checkpoint:
        with ExitStack() as stack:
            for file in sorted(set(self._names_by_file)):
                self._shards[file] = stack.enter_context(_open_shard(self.directory.path / file))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exc: object) -> None:
        self._shards.clear()
        self._stack.close()

    @property
    def files(self) -> list[Path]:
        return [self.directory.path / file for file in sorted(self._shards)]

    def tensor_files(self) -> dict[str, str]:
        """Shard file by tensor name, as the shards themselves say.

        Raises:
            ModelFormatError: the index names tensors that its shards lack, or two shards hold one.
        """
        found: dict[str, str] = {}
        for file, shard in self._shards.items():
            for name in shard.keys():  # noqa: SIM118 - not a mapping
                if name in found:
                    raise ModelFormatError(
                        f"tensor {name!r} is in both {found[name]} and {file} of "
                        f"{self.directory.path}: export the checkpoint again"
                    )
                found[name] = file
        absent = {
            name: file
            for file, names in self._names_by_file.items()
            for name in names
            if found.get(name) != file
        }
        if absent:
            name, file = next(iter(absent.items()))
            raise ModelFormatError(
                f"{_INDEX} of {self.directory.path} puts {len(absent)} tensors where they are not, "
                f"for example {name!r} into {file}: the shards and the index do not belong together"
            )
        return found

    def check(
        self, wanted: Mapping[str, Destination], ignored: frozenset[str] = frozenset()
    ) -> None:
        """Compare names, shapes and dtypes with what a model wants; reads headers only.

        Raises:
            ModelFormatError: tensors missing, unexpected or of another shape, all named.
            UnsupportedModel: a dtype that is not a plain float.
        """
        found = self.tensor_files()
        missing = sorted(wanted.keys() - found.keys())
        unexpected = sorted(
            name for name in found.keys() - wanted.keys() - ignored if not _DERIVED.fullmatch(name)
        )
        if missing or unexpected:
            raise ModelFormatError(
                f"{self.directory.path} has{_listing('missing', missing)}"
                f"{' and' if missing and unexpected else ''}"
                f"{_listing('unexpected', unexpected)}: the weights do not belong to this "
                "config.json, or the download is incomplete"
            )
        for name, destination in wanted.items():
            header = self._shards[found[name]].get_slice(name)
            if list(header.get_shape()) != list(destination.shape):
                raise ModelFormatError(
                    f"{self.directory.path}: tensor {name!r} has shape {header.get_shape()}, "
                    f"config.json asks for {list(destination.shape)}: they do not belong together"
                )
            if header.get_dtype() not in _DTYPES:
                raise UnsupportedModel(
                    f"{self.directory.path}: tensor {name!r} has dtype {header.get_dtype()}; "
                    "served are F32, F16 and BF16: use an unquantised checkpoint"
                )

    def dtype_of(self, name: str) -> torch.dtype:
        """The dtype in which the checkpoint stores tensor ``name``."""
        header = self._shards[self.tensor_files()[name]].get_slice(name)
        dtype: torch.dtype = {"F16": torch.float16, "BF16": torch.bfloat16}.get(
            header.get_dtype(), torch.float32
        )
        return dtype

    def load(
        self, destinations: Mapping[str, Destination], progress: Progress | None = None
    ) -> None:
        """Copy every destination's tensor into it, converted to its dtype. ``check`` comes first.

        Raises:
            ModelFormatError: a tensor that cannot be read, or is not finite in the dtype served.
        """
        files = self.tensor_files()
        for count, (name, destination) in enumerate(destinations.items(), start=1):
            try:
                tensor = self._shards[files[name]].get_tensor(name)
            except (SafetensorError, OSError) as exc:
                raise ModelFormatError(
                    f"{self.directory.path}: tensor {name!r} cannot be read ({exc}): "
                    "download the shard again"
                ) from exc
            destination.fill(tensor)
            if not _is_finite(destination.target):
                raise self._not_finite(name, tensor, destination.target.dtype)
            if progress is not None:
                progress(count, len(destinations))

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
    step = max(1, _CHECKED_ELEMENTS // max(1, tensor[:1].numel()))
    return all(
        bool(torch.isfinite(tensor[row : row + step]).all()) for row in range(0, len(tensor), step)
    )


def _listing(kind: str, names: list[str], shown: int = 5) -> str:
    if not names:
        return ""
    more = f" and {len(names) - shown} more" if len(names) > shown else ""
    return f" {len(names)} {kind} tensor{'s'[: len(names) > 1]} ({', '.join(names[:shown])}{more})"


def _tensor_files(directory: ModelDirectory) -> dict[str, list[str]]:
    """Tensor names by shard file according to the index; no names for a single file.

    Raises:
        ModelFormatError: no safetensors (pickles and GGUF are named with the remedy), a damaged
            index, or one that points outside the directory.
    """
    if not directory.has(_INDEX):
        if directory.has(_SINGLE):
            return {_SINGLE: []}
        raise _no_weights(directory)
    weight_map = directory.read_json(_INDEX).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ModelFormatError(
            f"{directory.path / _INDEX} has no weight_map object: download or export it again"
        )
    names_by_file: dict[str, list[str]] = {}
    for name, file in weight_map.items():
        if (
            not isinstance(file, str)
            or Path(file).name != file
            or not file.endswith(".safetensors")
        ):
            raise ModelFormatError(
                f"{directory.path / _INDEX} puts tensor {name!r} into {str(file)[:200]!r}; a shard "
                "is a .safetensors file of the same directory: do not use this checkpoint"
            )
        names_by_file.setdefault(file, []).append(name)
    return names_by_file


def _no_weights(directory: ModelDirectory) -> ModelFormatError:
    pickles = directory.pickle_files()
    if pickles:
        return ModelFormatError(
            f"{directory.path} has its weights in pickle files ({', '.join(pickles[:3])}), which "
            "can run code and are never opened: convert them with transformers, "
            "AutoModelForCausalLM.from_pretrained(SOURCE).save_pretrained(TARGET)"
        )
    gguf = directory.gguf_files()
    if gguf:
        return ModelFormatError(
            f"{directory.path} has its weights in GGUF files ({', '.join(gguf[:3])}), which Quire "
            "does not read: download the model's safetensors repository, or convert the file with "
            "transformers, AutoModelForCausalLM.from_pretrained(SOURCE, gguf_file=FILE)"
            ".save_pretrained(TARGET)"
        )
    return ModelFormatError(
        f"{directory.path} has neither {_SINGLE} nor {_INDEX}: the weights are missing"
    )


def _open_shard(path: Path) -> Any:
    if path.exists() and not path.is_file():  # opening a pipe would wait for its writer
        raise ModelFormatError(f"shard {path} is not a regular file: fetch it again")
    try:
        return safe_open(path, framework="pt")
    except FileNotFoundError as exc:
        raise ModelFormatError(
            f"shard {path} is missing: the download is incomplete; fetch it again"
        ) from exc
    except (SafetensorError, OSError) as exc:
        raise ModelFormatError(
            f"shard {path} cannot be read ({exc}): it is truncated or damaged; fetch it again"
        ) from exc


def weights_digest(files: list[Path], config: Mapping[str, Any], layout: Mapping[str, Any]) -> str:
    """SHA-256 (hex) of what makes pages interchangeable: config, weights, dtype, KV layout.

    Up to 4 GiB of shards are hashed whole; beyond that their sizes and 1 MiB of every 64 MiB (which
    includes the header), so that a large model does not take a minute longer to start.
    """
    digest = hashlib.sha256(json.dumps([config, layout], sort_keys=True).encode())
    whole = sum(path.stat().st_size for path in files) <= _WHOLE_HASH_BYTES
    for path in files:
        digest.update(f"{path.name}:{path.stat().st_size}".encode())
        with path.open("rb") as file:
            while chunk := file.read(_SAMPLE_BYTES):
                digest.update(chunk)
                if not whole:
                    file.seek(_SAMPLE_EVERY - _SAMPLE_BYTES, 1)
    return digest.hexdigest()
