"""The edge's knowledge of a model: template, sampling defaults, special tokens, length.

Reads only JSON and template files; imports no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from quire.core.errors import ModelFormatError
from quire.engine.checkpoint.config_reader import ConfigReader
from quire.engine.checkpoint.model_directory import ModelDirectory, locate

MAX_TEMPLATE_BYTES = 1 << 20
"""The longest templates in use have some tens of kilobytes."""

_MAX_TOKENS = 1 << 31


@dataclass(frozen=True, slots=True)
class ModelCard:
    """``defaults``: sampling defaults of generation_config.json, under its names.

    ``chat_template``: Jinja source, rendered by the edge in a sandbox. ``special_tokens``:
    bos_token, eos_token and the like, as templates expect them. ``max_length``: in tokens, None if
    the model does not say.
    """

    chat_template: str | None = None
    defaults: Mapping[str, Any] = field(default_factory=dict)
    eos_token_ids: tuple[int, ...] = ()
    bos_token_id: int | None = None
    special_tokens: Mapping[str, str] = field(default_factory=dict)
    max_length: int | None = None


def read_model_card(source: str) -> ModelCard:
    """The card of a directory or hub id.

    Raises:
        ModelNotFound, ModelFormatError: as for the directory and its files; a template over 1 MiB;
            a value of the wrong type or beyond its range.
    """
    directory = locate(source)
    config = directory.read_config()
    text = config.get("text_config")
    if isinstance(text, dict):  # as in models that take images
        config = {**config, **text}
    generation = directory.read_json_if_present("generation_config.json")
    tokenizer = directory.read_json_if_present("tokenizer_config.json")
    return ModelCard(
        chat_template=_chat_template(directory, tokenizer),
        defaults=_defaults(
            ConfigReader(generation, str(directory.path / "generation_config.json"))
        ),
        eos_token_ids=eos_token_ids(directory),
        bos_token_id=_integer(generation, "bos_token_id", _integer(config, "bos_token_id")),
        special_tokens=_special_tokens(tokenizer),
        max_length=_integer(config, "max_position_embeddings"),
    )


def eos_token_ids(directory: ModelDirectory) -> tuple[int, ...]:
    """Ids that end a generation: of generation_config.json, else of config.json.

    Raises:
        ModelFormatError: eos_token_id is neither a token id nor a list of them.
    """
    for name in ("generation_config.json", "config.json"):
        value = directory.read_json_if_present(name).get("eos_token_id")
        if value is None:
            continue
        ids = value if isinstance(value, list) else [value]
        if not all(type(one) is int and 0 <= one < _MAX_TOKENS for one in ids):
            raise ModelFormatError(
                f"{directory.path / name} has eos_token_id = {str(value)[:80]}: "
                "it must be an integer or a list of integers, none below 0"
            )
        return tuple(ids)
    return ()


def _defaults(generation: ConfigReader) -> dict[str, Any]:
    """The sampling defaults that are set, checked against the samplers' bounds."""
    readers: dict[str, Callable[[str], Any]] = {
        "temperature": partial(generation.number, low=0, high=100),
        "top_k": partial(generation.integer, low=-1, high=_MAX_TOKENS),
        "top_p": partial(generation.number, low=1e-9, high=1),
        "typical_p": partial(generation.number, low=1e-9, high=1),
        "min_p": partial(generation.number, low=0, high=1),
        "repetition_penalty": partial(generation.number, low=0.01, high=100),
        "do_sample": generation.flag,
        "max_new_tokens": partial(generation.integer, high=_MAX_TOKENS),
    }
    return {name: read(name) for name, read in readers.items() if generation.has(name)}


def _integer(values: Mapping[str, Any], name: str, default: int | None = None) -> int | None:
    value = values.get(name, default)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
        raise ModelFormatError(
            f"{name} of the model is {str(value)[:80]!r}; it must be an integer: correct its JSON"
        )
    return value


def _special_tokens(tokenizer: Mapping[str, Any]) -> dict[str, str]:
    tokens = {}
    for name in ("bos_token", "eos_token", "unk_token", "pad_token"):
        value = tokenizer.get(name)
        if isinstance(value, dict):
            value = value.get("content")
        if isinstance(value, str):
            tokens[name] = value
    return tokens


def _chat_template(directory: ModelDirectory, tokenizer: Mapping[str, Any]) -> str | None:
    if directory.has("chat_template.jinja"):
        return directory.read_text("chat_template.jinja", MAX_TEMPLATE_BYTES)
    template = tokenizer.get("chat_template")
    if template is None:  # older processors of models that take images keep it there
        template = directory.read_json_if_present("chat_template.json").get("chat_template")
    if isinstance(template, list):
        named = [one for one in template if isinstance(one, dict) and one.get("name") == "default"]
        template = named[-1].get("template") if named else None
    if template is None:
        return None
    if not isinstance(template, str):
        raise ModelFormatError(
            f"{directory.path / 'tokenizer_config.json'} has a chat_template that is no string"
            ": export the tokenizer again"
        )
    if len(template.encode()) > MAX_TEMPLATE_BYTES:
        raise ModelFormatError(
            f"the chat template of {directory.path} has {len(template.encode())} bytes; at most "
            f"{MAX_TEMPLATE_BYTES} are accepted: check where this model comes from"
        )
    return template
