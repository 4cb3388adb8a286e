"""Every key of a configuration is read, known to be harmless, refused, or named in a warning.

Owns the rules for keys that no reader has read. Does not know models: the reader of an object
provides a ``KeyScope`` that lists its harmless and its refused keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from quire.core.errors import UnsupportedModel
from quire.engine.checkpoint.config_reader import ConfigReader

_MAX_NAMED = 8
_MAX_SHOWN = 60


@dataclass(frozen=True, slots=True)
class KeyRefusal:
    """A key that changes results unless ``is_neutral`` holds for its value. ``what``: the feature
    that it asks for, as the end of "it asks for ..."."""

    what: str
    is_neutral: Callable[[Any], bool]


@dataclass(frozen=True, slots=True)
class KeyScope:
    """The known keys of one object that its reader may leave unread.

    ``harmless``: names, grouped by the reason why results do not depend on them. ``refused``: keys
    that are served with a neutral value only. ``sections``: the scopes of nested objects, by key;
    ``*``: of nested objects whose keys are arbitrary.
    """

    harmless: Mapping[str, frozenset[str]] = field(default_factory=dict)
    refused: Mapping[str, KeyRefusal] = field(default_factory=dict)
    sections: Mapping[str, KeyScope] = field(default_factory=dict)

    def is_harmless(self, name: str) -> bool:
        return any(name in names for names in self.harmless.values())


def absent(what: str, *neutral: Any) -> KeyRefusal:
    """A refusal that accepts null, empty values and ``neutral``."""

    def is_neutral(value: Any) -> bool:
        if value is None or (isinstance(value, list | dict | str) and not value):
            return True
        return any(type(value) is type(one) and value == one for one in neutral)

    return KeyRefusal(what, is_neutral)


def account(reader: ConfigReader, scope: KeyScope) -> list[str]:
    """Check the keys of ``reader`` and its nested objects that were not read; returns the warnings.

    Raises:
        UnsupportedModel: a key that changes results is not served.
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
    """The names in ``text``, separated by spaces."""
    return frozenset(text.split())


def merged(scopes: Iterable[KeyScope]) -> KeyScope:
    """One scope with all keys of ``scopes``."""
    harmless: dict[str, frozenset[str]] = {}
    refused: dict[str, KeyRefusal] = {}
    sections: dict[str, KeyScope] = {}
    for scope in scopes:
        for reason, known in scope.harmless.items():
            harmless[reason] = harmless.get(reason, frozenset()) | known
        refused.update(scope.refused)
        sections.update(scope.sections)
    return KeyScope(harmless, refused, sections)
