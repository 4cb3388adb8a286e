"""Runs a Python guest for its host: turns as JSON text in and out."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from quire.core.errors import InvalidArgument, QuotaExceeded
from quire.programs.sandbox import messages as m
from quire.programs.sandbox.answers import Answers
from quire.programs.sandbox.wasm.engine import PythonGuest

_ENCODER = msgspec.json.Encoder()
_TURN = msgspec.json.Decoder(m.Turn)
_INSPECTED = msgspec.json.Decoder(m.Inspected)
_UNREADABLE = (msgspec.DecodeError, UnicodeEncodeError, RecursionError)
"""Errors of decoding: invalid JSON, invalid text, JSON nested too deeply."""


class PythonRunner:
    """``GuestRunner`` of a program ``source`` in ``guest``. ``compiled``: the source's code as
    compiled by another guest, or empty. ``turn_bytes``: the limit of each answer."""

    def __init__(self, guest: PythonGuest, source: str, compiled: str, turn_bytes: int) -> None:
        self._guest = guest
        self._source = source
        self._compiled = compiled
        self._turn_bytes = turn_bytes

    @property
    def cpu_ns(self) -> int:
        return self._guest.cpu_ns

    @property
    def memory_bytes(self) -> int | None:
        return self._guest.memory_bytes()

    def attach(self, answers: Answers) -> None:
        self._guest.ask = answers

    def inspect(self, limit_s: float) -> m.Inspected:
        """The manifest; the runner cannot be used afterwards."""
        text = self._guest.inspect(self._source, limit_s)
        self._check_size(text)
        try:
            return _INSPECTED.decode(text)
        except _UNREADABLE as exc:
            raise InvalidArgument(f"the uploaded source is not a program: {exc}") from exc

    def begin(self, launch: m.GuestLaunch, limit_s: float) -> m.Turn:
        return self._decode(self._guest.load(self._source, self._compiled, _text(launch), limit_s))

    def wake(self, events: Sequence[m.GuestEvents], limit_s: float) -> m.Turn:
        return self._decode(self._guest.wake(_text(events), limit_s))

    def close(self) -> None:
        self._guest.close()

    def _decode(self, text: str) -> m.Turn:
        self._check_size(text)
        try:
            return _TURN.decode(text)
        except _UNREADABLE as exc:
            raise InvalidArgument(f"the program sent an invalid call: {exc}") from exc

    def _check_size(self, text: str) -> None:
        if len(text) > self._turn_bytes:
            raise QuotaExceeded(
                f"the calls of one turn have {len(text)} bytes; at most {self._turn_bytes} are "
                "allowed: await between calls"
            )


def _text(message: object) -> str:
    return _ENCODER.encode(message).decode()
