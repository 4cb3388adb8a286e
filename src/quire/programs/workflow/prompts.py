"""Prompts with named parts: ``Context: {context}`` as text and the names that it needs.

Owns the syntax alone; where a part comes from is decided when a graph is built.
"""

from __future__ import annotations

from dataclasses import dataclass
from string import Formatter

from quire.core.errors import InvalidArgument


@dataclass(frozen=True, slots=True)
class Part:
    """Literal ``text``, or the value of the input ``name``. ``turn``: the message of a conversation
    whose part it is; 0 is the user's prompt."""

    text: str = ""
    name: str | None = None
    turn: int = 0

    def __str__(self) -> str:
        return self.text if self.name is None else f"{{{self.name}}}"


@dataclass(frozen=True, slots=True)
class Prompt:
    """``Prompt.read("Question: {question}")``; ``{{`` and ``}}`` are braces."""

    parts: tuple[Part, ...]

    @classmethod
    def read(cls, text: str, where: str) -> Prompt:
        """Raises ``InvalidArgument`` if a part has no name, or something beside its name."""
        parts: list[Part] = []
        try:
            pieces = list(Formatter().parse(text))
        except ValueError as exc:
            raise InvalidArgument(
                f"{where}: the prompt {text!r} cannot be read ({exc}): write {{name}} for a part, "
                "{{ and }} for braces",
                param=where,
            ) from exc
        for literal, name, spec, conversion in pieces:
            if literal:
                parts.append(Part(literal))
            if name is None:
                continue
            if not name.isidentifier() or spec or conversion:
                raise InvalidArgument(
                    f"{where}: {{{name}}} is not the name of a part: write a name alone, or "
                    "{{ and }} for braces",
                    param=where,
                )
            parts.append(Part(name=name))
        if not parts:
            raise InvalidArgument(f"{where}: the prompt is empty: write one", param=where)
        return cls(tuple(parts))

    @property
    def names(self) -> tuple[str, ...]:
        """The names of its parts, each once."""
        return tuple(dict.fromkeys(part.name for part in self.parts if part.name is not None))
