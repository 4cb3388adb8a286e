"""Checks what programs give as sampler and grammar: objects of the SDK, which other layers read
without looking."""

from __future__ import annotations

from collections.abc import Mapping

from quire.core.decoding import GrammarSpec, SamplerSpec
from quire.core.errors import InvalidArgument


def check_sampler(sampler: object) -> None:
    """
    Raises:
        InvalidArgument: it is none, such as a temperature or a name.
    """
    if not isinstance(sampler, SamplerSpec):
        raise InvalidArgument(
            f"sampler is {_shown(sampler)}: give greedy(), or for example temperature(0.8)"
        )


def check_grammar(grammar: object) -> None:
    """``None``: there is none.

    Raises:
        InvalidArgument: it is none, such as a schema or an expression itself.
    """
    if grammar is None or isinstance(grammar, GrammarSpec):
        return
    remedy = "json_schema(...)" if isinstance(grammar, Mapping) else "json_schema, regex or lark"
    raise InvalidArgument(f"grammar is {_shown(grammar)}: give what {remedy} returns")


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}..."
