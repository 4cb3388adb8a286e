"""Checks that a command's values have the types of their fields, so that it can be sent.

A trusted program hands its commands over as objects, so a ``numpy.float32`` for a temperature or
None for a number gets as far as control, where it would be a failure of the node and not of the
program. Commands of guests have been decoded, which checked their types.
"""

from __future__ import annotations

from typing import Any

import msgspec

from quire.core import commands as c
from quire.core.decoding import GrammarSpec, SamplerSpec, StopSpec
from quire.core.errors import InvalidArgument

_ENCODER = msgspec.msgpack.Encoder()
_COMMAND: msgspec.msgpack.Decoder[c.Command] = msgspec.msgpack.Decoder(c.Command)
_SAMPLER = msgspec.msgpack.Decoder(SamplerSpec)
_DECODE = msgspec.msgpack.Decoder(
    tuple[SamplerSpec, StopSpec, GrammarSpec | None, int, int | None, int | None, bool, int, bool]
)


class WireTypes:
    """Raises ``InvalidArgument`` for a value that does not have its field's type. Remembers the
    sampler that was checked last: a program's own loop passes the same one for every token."""

    def __init__(self) -> None:
        self._sampler: SamplerSpec | None = None

    def check_sampler(self, sampler: SamplerSpec) -> None:
        if sampler is not self._sampler:
            _check(sampler, _SAMPLER)
            self._sampler = sampler

    def check_decode(self, command: c.Decode) -> None:
        """Check all but the pages and tokens, which control reads one by one."""
        values = (
            command.sampler, command.stop, command.grammar, command.position,
            command.num_logprobs, command.num_prompt_logprobs, command.cache,
            command.num_generated, command.stream,
        )  # fmt: skip
        _check(values, _DECODE)

    def check(self, command: c.Command) -> None:
        """Check the whole command, which costs more than most commands do."""
        _check(command, _COMMAND)


def _check(value: object, decoder: msgspec.msgpack.Decoder[Any]) -> None:
    try:
        decoder.decode(_ENCODER.encode(value))
    except (msgspec.MsgspecError, TypeError, ValueError, OverflowError, RecursionError) as exc:
        raise InvalidArgument(
            f"an argument has the wrong type or size: {exc}; give Python's own int (of 64 bits), "
            "float, bool, str or bytes, for example int(x) of a numpy integer"
        ) from exc
