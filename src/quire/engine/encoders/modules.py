"""The modules of a sentence-transformers directory (``modules.json``), as data. Imports no torch.

Owns the decision about an encoder's use: with pooling modules it embeds, with a module that
compares logits it scores pairs. A decoder without modules scores pairs, as Qwen3-Reranker's
checkpoints do.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from quire.core.encoding import EncoderKind
from quire.core.errors import ModelFormatError, UnsupportedModel
from quire.engine.checkpoint.config_reader import ConfigReader
from quire.engine.checkpoint.model_directory import ModelDirectory
from quire.engine.encoders.config import EncoderShape

POOLING_MODES = ("cls_token", "max_tokens", "mean_tokens", "mean_sqrt_len_tokens", "lasttoken")
"""The pooling modes, in the order in which several are concatenated, unless a list gives another
order."""

_NEW_NAMES = {
    "cls": "cls_token",
    "max": "max_tokens",
    "mean": "mean_tokens",
    "mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "lasttoken": "lasttoken",
}


@dataclass(frozen=True, slots=True)
class EncoderModule:
    """``kind``: the class's name without its package. ``path``: its folder in the directory."""

    kind: str
    path: str


def read_modules(directory: ModelDirectory) -> list[EncoderModule]:
    """Read the modules of ``directory``. Raises ``ModelFormatError``: no JSON, not a list of
    modules, or a folder outside the directory."""
    if not directory.has("modules.json"):
        return []
    listed = directory.read_json_value("modules.json")
    found = []
    for module in listed if isinstance(listed, list) else [None]:
        if not isinstance(module, dict):
            raise ModelFormatError(
                f"{directory.path / 'modules.json'} is not a list of modules: download or export "
                "it again"
            )
        path = str(module.get("path", ""))
        if not (directory.path / path).resolve().is_relative_to(directory.path):
            raise ModelFormatError(
                f"{directory.path / 'modules.json'} names the folder {path[:200]!r} outside its "
                "directory: do not use this checkpoint"
            )
        found.append(EncoderModule(str(module.get("type", "")).rpartition(".")[2], path))
    return found


def kind_of(shape: EncoderShape, modules: list[EncoderModule]) -> EncoderKind:
    """Whether the encoder embeds texts or scores pairs."""
    scores = any(module.kind == "LogitScore" for module in modules)
    if shape.head == "classifier" or scores or (shape.head == "words" and not modules):
        return "cross_encoder"
    return "embedding"


def read_pooling(reader: ConfigReader) -> tuple[str, ...]:
    """The pooling modes whose rows are concatenated.

    Raises:
        UnsupportedModel: a mode that is not served, or none.
    """
    if not reader.flag("include_prompt", True):
        raise UnsupportedModel(
            f"{reader.where} has include_prompt = false: served are models that pool over their "
            "prompt too"
        )
    flags = [name for name in reader.values if name.startswith("pooling_mode_")]
    mode = reader.raw("pooling_mode")
    if mode is None:
        wanted = _flagged_modes(reader, flags)
    else:
        wanted = _listed_modes(mode)
        reader.set_aside(*flags)
    unknown = [one for one in wanted if one not in POOLING_MODES]
    if unknown or not wanted:
        raise UnsupportedModel(
            f"{reader.where} pools by {', '.join(unknown)[:200] or 'nothing'}; served are "
            f"{', '.join(POOLING_MODES)}"
        )
    return tuple(wanted)


def _listed_modes(mode: Any) -> list[str]:
    """One name or a list of names, since version 5 of sentence-transformers."""
    listed = mode if isinstance(mode, list) else [mode]
    return [_NEW_NAMES.get(str(one), str(one)[:80]) for one in listed]


def _flagged_modes(reader: ConfigReader, flags: Iterable[str]) -> list[str]:
    """A flag for each mode, before version 5."""
    given = {name.removeprefix("pooling_mode_") for name in flags if reader.raw(name) is True}
    return [one for one in POOLING_MODES if one in given] + sorted(given - {*POOLING_MODES})
