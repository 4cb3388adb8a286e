"""Every key of a configuration is read, known to be harmless, refused, or named in a warning.

Owns how the keys that nobody has read are judged. Must not know models: which keys are harmless and
which change results stands in the ``KeyScope`` of who reads the object.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from quire.core.errors import UnsupportedModel
from quire.engine.config_reader import ConfigReader

_MAX_NAMED = 8
_MAX_SHOWN = 60


@dataclass(frozen=True, slots=True)
class Refusal:
    """A key that changes results where ``is_neutral`` does not hold. ``what``: what it asks for,
    as the end of "it asks for ..."."""

    what: str
    is_neutral: Callable[[Any], bool]


@dataclass(frozen=True, slots=True)
class KeyScope:
    """What is known of the keys of one object that its reader may leave unread.

    ``harmless``: names, under the reason why results do not depend on them. ``refused``: what is
    served with a neutral value only. ``sections``: the scopes of objects within, by key; ``*``: of
    those that are named by whoever wrote the file.
    """

    harmless: Mapping[str, frozenset[str]] = field(default_factory=dict)
    refused: Mapping[str, Refusal] = field(default_factory=dict)
    sections: Mapping[str, KeyScope] = field(default_factory=dict)

    def is_harmless(self, name: str) -> bool:
        return any(name in names for names in self.harmless.values())


def absent(what: str, *neutral: Any) -> Refusal:
    """Neutral where it is null, empty, or one of ``neutral``."""

    def is_neutral(value: Any) -> bool:
        if value is None or (isinstance(value, list | dict | str) and not value):
            return True
        return any(type(value) is type(one) and value == one for one in neutral)

    return Refusal(what, is_neutral)


def account(reader: ConfigReader, scope: KeyScope) -> list[str]:
    """Judge what has not been read of ``reader`` and of the objects in it; the warnings.

    Raises:
        UnsupportedModel: a key that changes results is not obeyed.
    """
    unknown = []
    for name, value in reader.values.items():
        if name in reader.keys.names:
            continue
        refusal = scope.refused.get(name)
        if refusal is not None:
            if not refusal.is_neutral(value):
                raise UnsupportedModel(
                    f"{reader.where} has {name} = {_shown(value)}, which asks for {refusal.what}; "
                    "this is not served here: use a checkpoint without it"
                )
        elif not scope.is_harmless(name):
            unknown.append(f"{name[:_MAX_SHOWN]} = {_shown(value)}")
    warnings = [_warning(reader.where, unknown)] if unknown else []
    for name, section in reader.keys.sections.items():
        warnings += account(section, scope.sections.get(name, scope.sections.get("*", KeyScope())))
    return warnings


def _warning(where: str, unknown: list[str]) -> str:
    named = ", ".join(unknown[:_MAX_NAMED])
    more = f" and {len(unknown) - _MAX_NAMED} more" if len(unknown) > _MAX_NAMED else ""
    return (
        f"{where} has keys that are not known here and are not used: {named}{more}. If one of them "
        "changes what the model computes, its answers are wrong"
    )


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."


def names(text: str) -> frozenset[str]:
    """Names that are separated by spaces."""
    return frozenset(text.split())


def merged(scopes: Iterable[KeyScope]) -> KeyScope:
    """What any of ``scopes`` knows."""
    harmless: dict[str, frozenset[str]] = {}
    refused: dict[str, Refusal] = {}
    sections: dict[str, KeyScope] = {}
    for scope in scopes:
        for reason, known in scope.harmless.items():
            harmless[reason] = harmless.get(reason, frozenset()) | known
        refused.update(scope.refused)
        sections.update(scope.sections)
    return KeyScope(harmless, refused, sections)
