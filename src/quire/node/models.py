"""The served models as programs and the edge see them: tokenizer, template, defaults.

Reads a model's small files (never its weights, never torch) and combines them with the engine's
description of itself. Owns the list of served models.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

from quire.core.config import EngineConfig, NodeConfig
from quire.core.engine_info import EngineInfo
from quire.core.errors import EngineLost, ModelNotFound
from quire.core.ids import ModelId
from quire.core.interfaces import ServedModel, Tokenizer
from quire.core.traits import NODE_TRAITS
from quire.engine.checkpoint.model_card import read_model_card
from quire.engine.checkpoint.model_directory import ADAPTER_WANTED, locate_here
from quire.engine.tokenizer import load_tokenizer
from quire.node.shipped import SHIPPED_MODEL, SHIPPED_READER

_SHIPPED = (SHIPPED_MODEL, SHIPPED_READER)


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """The contents of a model's directory besides weights. ``defaults`` are sampling defaults,
    ``text_start`` are the tokens that the tokenizer puts before a text."""

    tokenizer: Tokenizer
    chat_template: str | None = None
    defaults: Mapping[str, Any] = field(default_factory=dict)
    special_tokens: Mapping[str, str] = field(default_factory=dict)
    text_start: tuple[int, ...] = ()


def read_model_files(config: EngineConfig) -> ModelFiles:
    """Read the files of ``config.source``; blocks on disk (and the network, for a hub id).

    Raises:
        ModelNotFound, ModelFormatError, UnsupportedModel: see ``quire.engine``.
    """
    card = read_model_card(config.source)
    tokenizer = load_tokenizer(config.source)
    return ModelFiles(
        tokenizer=tokenizer,
        chat_template=card.chat_template,
        defaults=card.defaults,
        special_tokens=card.special_tokens,
        text_start=tokenizer.text_start,
    )


def resolve_source(source: str | None) -> str:
    """``source``, or the directory of a shipped model for its name (``None``: quire-mini).

    A directory of that name in the working directory does not shadow the shipped model; write
    ``./quire-mini`` for it.

    Raises:
        ModelNotFound: this installation has no such model.
    """
    name = SHIPPED_MODEL if source is None else source
    if name not in _SHIPPED:
        return name
    path = Path(str(files("quire"))) / "assets" / name
    if not (path / "config.json").is_file():
        raise ModelNotFound(
            f"the shipped model {name} is missing from this installation ({path}): install quire "
            "again, or name a model directory"
        )
    return str(path)


def resolve_engines(configs: Sequence[EngineConfig]) -> tuple[EngineConfig, ...]:
    """``configs`` with their sources resolved to what an engine process can open."""
    return tuple(replace(config, source=resolve_source(config.source)) for config in configs)


def check_sources(config: NodeConfig) -> None:
    """Raise for a model, adapter or encoder whose source cannot be served as far as that is known
    without the network and without its weights: a path that is no directory, a directory without a
    readable ``config.json``. Blocks on disk.

    Raises:
        ModelNotFound, ModelFormatError, UnsupportedModel: see ``quire.engine``.
    """
    for engine in resolve_engines(config.engines):
        _check_config_of(engine.source)
        for adapter in engine.adapters:
            locate_here(adapter.source, ADAPTER_WANTED)
    for encoder in config.encoders:
        _check_config_of(encoder.source)


def _check_config_of(source: str) -> None:
    directory = locate_here(source)
    if directory is not None:
        directory.read_config()


class ModelTable:
    """The served models in the order of the configuration, each followed by its adapters, which are
    models of their own here. The first is the default.

    ``node_traits``: traits that the node itself serves. Written by the edge, read from any thread:
    ``models`` is a new tuple after each change.
    """

    def __init__(
        self, configs: Sequence[EngineConfig], node_traits: frozenset[str] = NODE_TRAITS
    ) -> None:
        self._node_traits = node_traits
        self._bases = {
            ModelId(name): config.name
            for config in configs
            for name in (config.name, *(adapter.name for adapter in config.adapters))
        }
        self._order = list(self._bases)
        self._loaded: dict[ModelId, ServedModel] = {}
        self._problems: dict[ModelId, str] = {}
        self._models: tuple[ServedModel, ...] = ()
        self._lock = threading.Lock()

    def models(self) -> tuple[ServedModel, ...]:
        """The models that have been loaded."""
        return self._models

    def name_of(self, name: str | None) -> ModelId:
        """``name``, or that of the default model; ``MODEL:ADAPTER`` names an adapter too.

        Raises:
            ModelNotFound: no model and no adapter has that name, or the node serves no model.
        """
        if not self._order:
            raise ModelNotFound(
                "this node serves no model, and none will be loaded: start it with one (quire "
                "serve MODEL)",
                served=[],
            )
        wanted = self._order[0] if name is None else ModelId(name)
        if wanted not in self._order:
            model, _, adapter = wanted.rpartition(":")
            if model != adapter and self._bases.get(ModelId(adapter)) == model:
                return ModelId(adapter)
            raise ModelNotFound(
                f"no model {name!r} is served here; served: {', '.join(self._order)}",
                served=list(self._order),
                param="model",
            )
        return wanted

    def base_of(self, name: ModelId) -> ModelId:
        """The base model whose engines serve the model or adapter ``name``."""
        return self._bases[name]

    def get(self, name: ModelId) -> ServedModel:
        """Return the model or adapter ``name``.

        Raises:
            EngineLost: a configured model is not loaded yet, or an adapter could not be loaded
                again.
        """
        if problem := self._problems.get(name):
            raise EngineLost(
                f"adapter {name} is not served since its model was started again: {problem}; put "
                "that right and start the node again"
            )
        model = self._loaded.get(name)
        if model is None:
            raise EngineLost(f"model {name} is still being loaded: try again in a moment")
        return model

    def put(self, name: ModelId, info: EngineInfo, model_files: ModelFiles) -> None:
        """Make the model ``name`` and its adapters available: an engine of it is ready."""
        model = ServedModel(
            id=name,
            base=name,
            info=info,
            tokenizer=model_files.tokenizer,
            chat_template=model_files.chat_template,
            defaults=model_files.defaults,
            special_tokens=model_files.special_tokens,
            text_start=model_files.text_start,
            node_traits=self._node_traits,
        )
        with self._lock:
            problems = {ModelId(adapter.name): adapter.problem for adapter in info.adapters}
            others = {known: one for known, one in self._loaded.items() if known not in problems}
            self._problems = {**self._problems, **problems}
            self._loaded = others | {one.id: one for one in model.with_adapters()}
            self._models = tuple(
                self._loaded[known] for known in self._order if known in self._loaded
            )
