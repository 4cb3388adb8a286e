"""``quire models``: the models that can be served here, and those of a running node.

Reads configuration files only. The engine package decides which model can be served.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from quire.cli.client import NodeClient
from quire.cli.console import output, table
from quire.cli.options.shared import ApiKey, OptionalUrl
from quire.core.sizes import format_size
from quire.engine.checkpoint.model_directory import ModelDirectory
from quire.node import SHIPPED_MODEL, SHIPPED_READER, resolve_source


@dataclass(frozen=True, slots=True)
class ModelSummary:
    """What ``config.json`` and the files contain about a model; ``None`` if they lack it.

    ``served``: as what it is served, or ``no``. ``notes``: the reason, or configuration keys
    that are not known.
    """

    name: str
    family: str
    num_layers: int | None
    hidden_size: int | None
    context_tokens: int | None
    weights_bytes: int
    served: str
    notes: tuple[str, ...] = ()


def models(
    directories: Annotated[
        list[Path] | None,
        typer.Argument(metavar="DIRECTORY", help="Hugging Face model directories to describe."),
    ] = None,
    url: OptionalUrl = None,
    api_key: ApiKey = None,
) -> None:
    """List the shipped models and model directories, or the models of a running node (--url).

    The column 'served as' says how 'quire serve' takes a directory: as a model (quire serve
    DIRECTORY) or as an encoder (--encoder DIRECTORY). For a directory that cannot be served the
    reason is printed, and the exit status is 1. Unknown keys of its configuration are named.
    Directories are read on this machine, whatever --url says.

    Examples:

        quire models

        quire models ~/models/Qwen3-0.6B

        quire models --url http://127.0.0.1:8000
    """
    if url is not None and not directories:
        _list_served(url, api_key)
        return
    named = [path.expanduser() for path in directories or []]
    shipped = [
        summarise(Path(resolve_source(name)), is_known=True)
        for name in (SHIPPED_MODEL, SHIPPED_READER)
    ]
    cards = [*shipped, *map(summarise, named)]
    _print_cards(cards)
    for card in cards:
        for note in card.notes:
            output().print(f"{card.name}: {note}", markup=False, soft_wrap=True)
    if any(card.served == "no" for card in cards):
        raise typer.Exit(1)


def _print_cards(cards: list[ModelSummary]) -> None:
    listed = table(
        "model", "family", "layers", "hidden", "context", "weights", "served as", right=_FIGURES
    )
    for card in cards:
        listed.add_row(
            card.name,
            card.family,
            _figure(card.num_layers),
            _figure(card.hidden_size),
            _figure(card.context_tokens),
            format_size(card.weights_bytes),
            card.served,
        )
    output().print(listed)


_SERVED = {"model": "model", "embedding": "encoder", "cross_encoder": "encoder"}
"""How each kind of model is served."""
_FIGURES = ("layers", "hidden", "context", "weights")


def _figure(value: int | None) -> str:
    return "?" if value is None else str(value)


def _list_served(url: str, api_key: str | None) -> None:
    listed = table("model", "owner", "context", right=("context",))
    with NodeClient(url, api_key) as node:
        for model in node.models():
            listed.add_row(model["id"], model["owned_by"], _figure(model.get("max_model_len")))
    output().print(listed)


def summarise(directory: Path, *, is_known: bool = False) -> ModelSummary:
    """Describe a model directory without loading it. ``is_known``: skip the check whether it can be
    served.

    Raises:
        ModelFormatError, UnsupportedModel: ``config.json`` is missing or cannot be read.
    """
    config = ModelDirectory(directory).read_config()
    text = config.get("text_config")
    if isinstance(text, dict):  # also in the configuration of a model that sees images
        config = {**text, **config}
    served, notes = ("model", ()) if is_known else _judge(directory)
    return ModelSummary(
        name=directory.resolve().name,
        family=str(config.get("model_type", "unknown")),
        num_layers=config.get("num_hidden_layers"),
        hidden_size=config.get("hidden_size"),
        context_tokens=config.get("max_position_embeddings"),
        weights_bytes=sum(path.stat().st_size for path in directory.glob("*.safetensors")),
        served=served,
        notes=notes,
    )


def _judge(directory: Path) -> tuple[str, tuple[str, ...]]:
    """Return as what a model is served, and notes about it."""
    from quire.engine.inspection import inspect  # late: it imports torch, which takes seconds

    finding = inspect(directory)
    if finding.use is None:
        return "no", (finding.reason,)
    return _SERVED[finding.use], finding.warnings
