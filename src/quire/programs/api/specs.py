"""Checks the sampler and grammar of a command: other layers expect objects that the SDK made."""

from __future__ import annotations

from collections.abc import Mapping

from quire.core.decoding import GrammarSpec, SamplerSpec
from quire.core.errors import InvalidArgument


def check_sampler(sampler: object) -> None:
    """Check that ``sampler`` is a ``SamplerSpec``.

    Raises:
        InvalidArgument: it is something else, such as a temperature or a name.
    """
    if not isinstance(sampler, SamplerSpec):
        raise InvalidArgument(
            f"sampler is {_shown(sampler)}: give greedy(), or for example temperature(0.8)"
        )


def check_grammar(grammar: object) -> None:
    """Check that ``grammar`` is a ``GrammarSpec`` or ``None``.

    Raises:
        InvalidArgument: it is something else, such as a schema or an expression itself.
    """
    if grammar is None or isinstance(grammar, GrammarSpec):
        return
    remedy = "json_schema(...)" if isinstance(grammar, Mapping) else "json_schema, regex or lark"
    raise InvalidArgument(f"grammar is {_shown(grammar)}: give what {remedy} returns")


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}..."
