"""Prompts with named parts: ``Context: {context}`` as text and the names that it needs.

Owns only the syntax: the source of each part is decided when a graph is built.
"""

from __future__ import annotations

from dataclasses import dataclass
from string import Formatter

from quire.core.errors import InvalidArgument

MAX_NAMED_PARTS = 256
"""The most named parts of one prompt, which may come with a query."""


@dataclass(frozen=True, slots=True)
class PromptPart:
    """Literal ``text``, or the value of the input ``name``. ``turn``: the message of a conversation
    that it is part of; 0 is the user's prompt."""

    text: str = ""
    name: str | None = None
    turn: int = 0

    def __str__(self) -> str:
        return self.text if self.name is None else f"{{{self.name}}}"


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt as ``Prompt.read("Question: {question}")``; ``{{`` and ``}}`` are braces."""

    parts: tuple[PromptPart, ...]

    @classmethod
    def read(cls, text: str, where: str) -> Prompt:
        """Read a prompt.

        Raises:
            InvalidArgument: a part has no name, or something beside its name, or there are more
                than ``MAX_NAMED_PARTS``.
        """
        parts: list[PromptPart] = []
        try:
            pieces = list(Formatter().parse(text))
        except ValueError as exc:
            raise InvalidArgument(
                f"{where}: the prompt {text!r:.60} cannot be read ({exc}): write {{name}} for "
                "a part, {{ and }} for braces",
                param=where,
            ) from exc
        literals: list[str] = []
        num_named = 0
        for literal, name, spec, conversion in pieces:
            literals.append(literal)  # a brace ends a piece
            if name is None:
                continue
            if not name.isidentifier() or spec or conversion:
                raise InvalidArgument(
                    f"{where}: {{{name:.60}}} is not the name of a part: write a name alone, or "
                    "{{ and }} for braces",
                    param=where,
                )
            num_named += 1
            parts += [*_literal(literals), PromptPart(name=name)]
            literals.clear()
        if num_named > MAX_NAMED_PARTS:
            raise InvalidArgument(
                f"{where}: the prompt has {num_named} named parts, {MAX_NAMED_PARTS} are allowed: "
                "name each once, or write fewer",
                param=where,
            )
        parts += _literal(literals)
        if not parts:
            raise InvalidArgument(f"{where}: the prompt is empty: write one", param=where)
        return cls(tuple(parts))

    @property
    def names(self) -> tuple[str, ...]:
        """The names of its parts, each once."""
        return tuple(dict.fromkeys(part.name for part in self.parts if part.name is not None))


def _literal(pieces: list[str]) -> list[PromptPart]:
    text = "".join(pieces)
    return [PromptPart(text)] if text else []
