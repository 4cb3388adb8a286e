"""Finds a model directory and reads its JSON files; trusts none of their contents.

Owns: hub ids and local paths, size limits, the refusal of code and pickles. Does not know tensors
or torch.
"""

from __future__ import annotations

import json
import re
import stat
from pathlib import Path
from typing import Any

from quire.core.errors import ModelFormatError, ModelNotFound, UnsupportedModel

MAX_JSON_BYTES = 64 << 20
"""Far above any real metadata file; the largest are tokenizers of about 20 MB."""

GGUF_REMEDY = (
    "GGUF, which Quire does not read: name the model's safetensors repository (often the same name "
    "without -GGUF), or convert the file with transformers, "
    "AutoModelForCausalLM.from_pretrained(DIRECTORY, gguf_file=FILE).save_pretrained(TARGET)"
)

_GGUF = re.compile(r"(\.gguf|-gguf:[\w.-]+)$", re.IGNORECASE)
"""A file, or a repository with a quantisation as llama.cpp names them."""

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_UNUSED_CODE = ("AutoTokenizer", "AutoProcessor", "AutoImageProcessor")
"""Never executed: tokenizers are read from tokenizer.json, and images are processed by Quire."""
_PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")


class ModelDirectory:
    """A local directory in the Hugging Face layout."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def has(self, name: str) -> bool:
        return (self.path / name).is_file()

    def read_text(self, name: str, max_bytes: int = MAX_JSON_BYTES) -> str:
        """The UTF-8 text of the file ``name``.

        Raises:
            ModelFormatError: missing, larger than ``max_bytes``, or not UTF-8.
        """
        path = self.path / name
        try:
            status = path.stat()
            if not stat.S_ISREG(status.st_mode):  # opening a pipe would wait for its writer
                raise ModelFormatError(
                    f"{path} is not a regular file: put the model's own {name} there"
                )
            size = status.st_size
            if size > max_bytes:
                raise ModelFormatError(
                    f"{path} has {size} bytes; at most {max_bytes} are read: "
                    "check that the file is what its name says"
                )
            return path.read_bytes().decode("utf-8")
        except FileNotFoundError as exc:
            if gguf := self.gguf_files():
                raise ModelFormatError(
                    f"{self.path} has a model ({', '.join(gguf[:3])}) in llama.cpp's format, "
                    f"{GGUF_REMEDY}"
                ) from exc
            raise ModelFormatError(
                f"{self.path} has no {name}: a model directory needs config.json, tokenizer.json "
                "and *.safetensors (see `save_pretrained` of transformers)"
            ) from exc
        except OSError as exc:
            raise ModelFormatError(f"{path} cannot be read: {exc}") from exc
        except UnicodeDecodeError as exc:
            raise ModelFormatError(f"{path} is not UTF-8 ({exc}): save it again as UTF-8") from exc

    def read_json_value(self, name: str) -> Any:
        """The JSON value in the file ``name``; errors as for ``read_text``."""
        text = self.read_text(name)
        try:
            value = json.loads(text)
            if _SURROGATE.search(text):  # not valid text for tokenizers and file systems
                json.dumps(value, ensure_ascii=False).encode()
        except (ValueError, RecursionError) as exc:
            raise ModelFormatError(
                f"{self.path / name} is not valid JSON ({exc}): download or export it again"
            ) from exc
        return value

    def read_json(self, name: str) -> dict[str, Any]:
        """The JSON object in the file ``name``; errors as for ``read_text``."""
        value = self.read_json_value(name)
        if not isinstance(value, dict):
            raise ModelFormatError(
                f"{self.path / name} holds a JSON {type(value).__name__}, not an object: "
                "download or export it again"
            )
        return value

    def read_json_if_present(self, name: str) -> dict[str, Any]:
        return self.read_json(name) if self.has(name) else {}

    def read_config(self) -> dict[str, Any]:
        """``config.json``, refused when the model needs code of its own.

        Some models were published with code that transformers later adopted under the same names.
        These are served by the built-in definition, and their code is ignored.

        Raises:
            UnsupportedModel: ``auto_map`` names other Python code of the directory.
        """
        config = self.read_json("config.json")
        if config.get("auto_map") and not _is_code_of_its_architecture(config):
            raise UnsupportedModel(
                f"{self.path / 'config.json'} asks for the model's own Python code (auto_map "
                f"{str(config['auto_map'])[:200]}); Quire never runs code of a model "
                "directory: use a checkpoint of a built-in architecture"
            )
        return config

    def pickle_files(self) -> list[str]:
        """Names of weight files that are pickles, which Quire does not open."""
        return sorted(p.name for p in self.path.iterdir() if p.suffix in _PICKLE_SUFFIXES)

    def broken_links(self) -> list[str]:
        """The names of links to files that do not exist."""
        return sorted(p.name for p in self.path.iterdir() if p.is_symlink() and not p.exists())

    def gguf_files(self) -> list[str]:
        """Names of weight files in llama.cpp's format, which Quire does not read; none if there is
        no such directory."""
        return sorted(path.name for path in self.path.glob("*.gguf"))


def _is_code_of_its_architecture(config: dict[str, Any]) -> bool:
    """Whether every class in ``auto_map`` has the name of the declared architecture's class."""
    classes, architectures = config["auto_map"], config.get("architectures")
    if not isinstance(classes, dict) or not isinstance(architectures, list) or not architectures:
        return False
    stem = str(architectures[0]).removesuffix("ForCausalLM")
    return all(
        isinstance(place, str) and place.rpartition(".")[2].startswith(stem)
        for kind, place in classes.items()
        if kind not in _UNUSED_CODE
    )


_MODEL_WANTED = (
    "give the path of a directory with config.json and *.safetensors, or a shipped model "
    "('quire models')"
)
ADAPTER_WANTED = "an adapter is a directory as PEFT's save_pretrained writes it"


def locate(source: str, wanted: str = _MODEL_WANTED) -> ModelDirectory:
    """The directory for a path or a hub id (which is downloaded into the hub's cache). ``wanted``:
    the remedy in the error for a name that is neither.

    Raises:
        ModelNotFound: neither a directory nor a repository that can be reached.
    """
    local = locate_here(source, wanted)
    if local is not None:
        return local
    from quire.engine.checkpoint.hub import (
        download,  # imported late: a local directory needs no hub client
    )

    return ModelDirectory(download(source))


def locate_here(source: str, wanted: str = _MODEL_WANTED) -> ModelDirectory | None:
    """The directory for a path; ``None`` for a hub id, for which the network may be needed.
    ``wanted``: as for ``locate``.

    Raises:
        ModelNotFound: neither a directory nor a hub id.
    """
    path = Path(source).expanduser()
    if path.is_dir():
        return ModelDirectory(path.resolve())
    if _GGUF.search(source):
        raise ModelNotFound(f"{source!r} is in llama.cpp's format, {GGUF_REMEDY}")
    if path.exists() or source.startswith((".", "~")) or not _HUB_ID.fullmatch(source):
        raise ModelNotFound(
            f"{source!r} is neither a directory nor a hub id like 'org/name': {wanted}"
        )
    return None
