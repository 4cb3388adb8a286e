"""The component's exports. Runs only inside a guest: ``wit_world`` is generated when it is built.

Modules that are imported here are part of the memory image from which every guest starts, so that a
launch imports nothing: the API, the SDK, the library, and the standard modules that programs use
most. The others are kept as code (``standard_library``).
"""

from __future__ import annotations

import array  # noqa: F401  # fmt: skip
import random
import socket
import sys
import time
from collections.abc import Callable

import wit_world

import quire.programs.sdk  # noqa: F401
from quire.programs.library import LIBRARY
from quire.programs.sandbox.python.guest.image import settle
from quire.programs.sandbox.python.guest.rehearsal import rehearse, warm
from quire.programs.sandbox.python.guest.session import GuestSession
from quire.programs.sandbox.python.guest.standard_library import StandardLibrary, interpreter_folder


class WitWorld(wit_world.WitWorld):  # type: ignore[misc]
    """A guest runs one program, once."""

    def warm(self) -> None:
        warm()

    def inspect(self, source: str) -> str:
        return _session.inspect(source)

    def compile(self, source: str) -> str:
        return _session.compile(source)

    def load(self, source: str, compiled: str, launch: str) -> str:
        return _session.load(source, compiled, launch)

    def wake(self, events: str) -> str:
        return _session.wake(events)

    def memory_pages(self) -> int:
        raise AssertionError("replaced in the built component")


def _refuse_sleep(seconds: float) -> None:
    raise RuntimeError(f"time.sleep({seconds}) would block: await asyncio.sleep({seconds})")


def _refuse_socket(*_: object, **__: object) -> None:
    raise PermissionError("a sandboxed program has no sockets: use api.http_get")


def _seed_later() -> None:
    """Do nothing. componentize-py calls ``random.seed`` before a guest's first call, which reads
    2,496 random bytes and takes longer than all the rest of a launch. A session seeds with its
    program's own seed."""
    random.seed = _seed


# These only improve the error messages; the protection is that the host implements neither.
time.sleep = _refuse_sleep  # type: ignore[assignment]
socket.socket.__init__ = _refuse_socket  # type: ignore[method-assign]
socket.getaddrinfo = _refuse_socket  # type: ignore[assignment]  # clients ask for names first

_ask: Callable[[str], str] = wit_world.ask
PROGRAMS = dict(LIBRARY)  # accessed, and thereby imported, while there is a file system
rehearse()
# last, because modules that are imported by now need no copy
sys.meta_path.append(StandardLibrary(interpreter_folder()))
_session = GuestSession(_ask)
_seed = random.seed
random.seed = _seed_later  # type: ignore[assignment]
_image = settle()
