"""Predicts from its small files whether a model directory can be served, as what, or why not.

Reads no weights. Imports the families and thereby torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from quire.core.errors import ModelError
from quire.engine.checkpoint.config_accounting import account
from quire.engine.checkpoint.config_reader import ConfigReader
from quire.engine.checkpoint.model_directory import ModelDirectory
from quire.engine.encoders.config import ARCHITECTURES, read_shape
from quire.engine.encoders.known_keys import BIDIRECTIONAL, CAUSAL
from quire.engine.encoders.modules import kind_of, read_modules
from quire.engine.models.qwen3 import read_qwen3
from quire.engine.models.registry import family_of
from quire.engine.quantization.registry import scheme_of
from quire.engine.vision.config import read_vision

Use = Literal["model", "embedding", "cross_encoder"]


@dataclass(frozen=True, slots=True)
class Finding:
    """``use``: what the directory can be served as; None: nothing, for ``reason``. ``warnings``:
    unknown keys of its configuration."""

    use: Use | None
    reason: str = ""
    warnings: tuple[str, ...] = ()


def inspect(path: Path) -> Finding:
    """Predict how the directory ``path`` can be served. A generative model is reported as such even
    if it could also be an encoder."""
    directory = ModelDirectory(path)
    try:
        reader = ConfigReader(directory.read_config(), str(path / "config.json"))
        if _is_encoder(reader, directory):
            return _encoder(reader, directory)
        return _model(reader)
    except ModelError as exc:
        return Finding(None, exc.message)


def _is_encoder(reader: ConfigReader, directory: ModelDirectory) -> bool:
    named = reader.raw("architectures")
    architecture = named[0] if isinstance(named, list) and named else None
    known = ARCHITECTURES.get(architecture) if isinstance(architecture, str) else None
    return known is not None and (known[1] != "words" or directory.has("modules.json"))


def _encoder(reader: ConfigReader, directory: ModelDirectory) -> Finding:
    shape = read_shape(reader)
    if shape.body is None:
        read_qwen3(reader)
    warnings = account(reader, BIDIRECTIONAL if shape.body else CAUSAL)
    return Finding(kind_of(shape, read_modules(directory)), warnings=tuple(warnings))


def _model(reader: ConfigReader) -> Finding:
    family = family_of(dict(reader.values), reader.where)
    shape = family.read(reader)
    if family.sees_images:
        read_vision(reader, output_size=shape.hidden_size, vocab_size=shape.vocab_size)
    scheme_of(reader)
    return Finding("model", warnings=tuple(account(reader, family.keys)))
