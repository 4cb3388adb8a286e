"""The component's exports. Runs inside a guest alone: ``wit_world`` is made when it is built.

What is imported here stands in the memory image that every guest starts from, so that a launch
imports nothing: the API, the SDK, the library, and the standard modules that programs use most.
"""

from __future__ import annotations

import array  # noqa: F401  # fmt: skip
import gc
import socket
import time
from collections.abc import Callable

import wit_world

import quire.programs.sdk  # noqa: F401
from quire.programs.library import LIBRARY
from quire.programs.sandbox.guest.rehearsal import rehearse, warm
from quire.programs.sandbox.guest.session import GuestSession


class WitWorld(wit_world.WitWorld):  # type: ignore[misc]
    """A guest runs one program, once."""

    def warm(self) -> None:
        warm()

    def inspect(self, source: str) -> str:
        return _session.inspect(source)

    def load(self, source: str, launch: str) -> str:
        return _session.load(source, launch)

    def wake(self, events: str) -> str:
        return _session.wake(events)


def _refuse_sleep(seconds: float) -> None:
    raise RuntimeError(f"time.sleep({seconds}) would block: await asyncio.sleep({seconds})")


def _refuse_socket(*_: object, **__: object) -> None:
    raise PermissionError("a sandboxed program has no sockets: use api.http_get")


# Words for honest mistakes. What holds is that the host implements neither.
time.sleep = _refuse_sleep  # type: ignore[assignment]
socket.socket.__init__ = _refuse_socket  # type: ignore[method-assign]

_ask: Callable[[str], str] = wit_world.ask
PROGRAMS = dict(LIBRARY)  # looked up, and so imported, while there still is a file system
rehearse()
_session = GuestSession(_ask)
gc.collect()
gc.freeze()  # what the image holds is never garbage, and looking at it would copy its pages
