"""The safetensors files of a model directory and the tensors in them; trusts neither.

Never opens pickles. Does not know which tensors a model needs.
"""

from __future__ import annotations

from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from quire.core.errors import ModelFormatError
from quire.engine.checkpoint.model_directory import GGUF_REMEDY, ModelDirectory
from quire.engine.quantization.scheme import Header

_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"
_LFS_POINTER = b"version https://git-lfs"


class Shards:
    """The open shards of one model directory. A context manager that closes them."""

    def __init__(self, directory: ModelDirectory) -> None:
        self.directory = directory
        self._names_by_file = _tensor_files(directory)
        self._stack = ExitStack()
        self._shards: dict[str, Any] = {}

    def __enter__(self) -> Shards:
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

    @cached_property
    def headers(self) -> dict[str, Header]:
        """Shape and dtype of every tensor, from the shards' own headers.

        Raises:
            ModelFormatError: the index names tensors that its shards lack, or two shards hold one.
        """
        headers = {}
        for name, file in self._file_of.items():
            header = self._shards[file].get_slice(name)
            headers[name] = Header(tuple(header.get_shape()), header.get_dtype())
        return headers

    def read(self, name: str) -> Tensor:
        """The stored tensor ``name``.

        Raises:
            ModelFormatError: it cannot be read.
        """
        try:
            tensor: Tensor = self._shards[self._file_of[name]].get_tensor(name)
        except (SafetensorError, OSError) as exc:
            raise ModelFormatError(
                f"{self.directory.path}: tensor {name!r} cannot be read ({exc}): "
                "download the shard again"
            ) from exc
        return tensor

    @cached_property
    def _file_of(self) -> dict[str, str]:
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
            f"{directory.path} has its weights ({', '.join(gguf[:3])}) in llama.cpp's format, "
            f"{GGUF_REMEDY}"
        )
    broken = directory.broken_links()
    if broken:
        return ModelFormatError(
            f"{directory.path} has links to files that are gone ({', '.join(broken[:3])}), so the "
            "weights are missing: copy the directory with the files (cp -L), or download it again"
        )
    return ModelFormatError(
        f"{directory.path} has neither {_SINGLE} nor {_INDEX}: the weights are missing; download "
        "them, or save the model with save_pretrained of transformers"
    )


def _open_shard(path: Path) -> Any:
    try:
        if path.exists() and not path.is_file():  # opening a pipe would wait for its writer
            raise ModelFormatError(f"shard {path} is not a regular file: fetch it again")
        if _is_pointer(path):
            raise ModelFormatError(
                f"shard {path} is a pointer of Git LFS, not the weights: fetch them with "
                "`git lfs pull` in its directory"
            )
        return safe_open(path, framework="pt")
    except FileNotFoundError as exc:
        raise ModelFormatError(
            f"shard {path} is missing: the download is incomplete; fetch it again"
        ) from exc
    except (SafetensorError, OSError) as exc:
        raise ModelFormatError(
            f"shard {path} cannot be read ({exc}): it is truncated or damaged; fetch it again"
        ) from exc


def _is_pointer(path: Path) -> bool:
    """Whether the file is the placeholder that a clone leaves when Git LFS is not installed."""
    with path.open("rb") as file:
        return file.read(len(_LFS_POINTER)) == _LFS_POINTER
