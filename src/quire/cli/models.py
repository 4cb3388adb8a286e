"""``quire models``: what can be served here, and what a running node serves.

Reads configuration files only; weights are the engine's.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from quire.cli.client import NodeClient
from quire.cli.console import output, table
from quire.cli.options import ApiKey, OptionalUrl
from quire.cli.sizes import format_size
from quire.core.ids import ModelId
from quire.engine.model_directory import ModelDirectory
from quire.node import SHIPPED_MODEL, resolve_source


@dataclass(frozen=True, slots=True)
class ModelSummary:
    """What ``config.json`` and the files say of a model; ``None`` where it does not say."""

    name: str
    family: str
    num_layers: int | None
    hidden_size: int | None
    context_tokens: int | None
    weights_bytes: int


def models(
    directories: Annotated[
        list[Path] | None,
        typer.Argument(metavar="DIRECTORY", help="Hugging Face model directories to describe."),
    ] = None,
    url: OptionalUrl = None,
    api_key: ApiKey = None,
) -> None:
    """List the shipped model and directories you name, or what a running node serves (--url).

    Examples:

        quire models

        quire models ~/models/Qwen3-0.6B

        quire models --url http://127.0.0.1:8000
    """
    if url is not None:
        _list_served(url, api_key)
        return
    named = [path.expanduser() for path in directories or []]
    cards = [summarise(path) for path in (Path(resolve_source(SHIPPED_MODEL)), *named)]
    listed = table("model", "family", "layers", "hidden", "context", "weights", right=_FIGURES)
    for card in cards:
        listed.add_row(
            card.name,
            card.family,
            _figure(card.num_layers),
            _figure(card.hidden_size),
            _figure(card.context_tokens),
            format_size(card.weights_bytes),
        )
    output().print(listed)


_FIGURES = ("layers", "hidden", "context", "weights")


def _figure(value: int | None) -> str:
    return "?" if value is None else str(value)


def _list_served(url: str, api_key: str | None) -> None:
    listed = table("model", "owner", "context", right=("context",))
    with NodeClient(url, api_key) as node:
        for model in node.models():
            listed.add_row(model["id"], model["owned_by"], _figure(model.get("max_model_len")))
    output().print(listed)


def default_name(source: str) -> ModelId:
    """The name a model is served under unless one is given: its directory's, or what was typed."""
    path = Path(source).expanduser()
    return ModelId(path.resolve().name if path.is_dir() else source)


def summarise(directory: Path) -> ModelSummary:
    """Describe a model directory without loading it.

    Raises:
        ModelFormatError, UnsupportedModel: ``config.json`` is missing or cannot be used.
    """
    config = ModelDirectory(directory).read_config()
    return ModelSummary(
        name=directory.resolve().name,
        family=str(config.get("model_type", "unknown")),
        num_layers=config.get("num_hidden_layers"),
        hidden_size=config.get("hidden_size"),
        context_tokens=config.get("max_position_embeddings"),
        weights_bytes=sum(path.stat().st_size for path in directory.glob("*.safetensors")),
    )


__all__ = ["ModelSummary", "default_name", "models", "summarise"]
