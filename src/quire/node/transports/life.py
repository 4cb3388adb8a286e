"""One life of a child process (engine, encoder, sandbox), as the node sees it.

Joins the socket (``socket``) and the process (``child``): the handshake with versions and token,
loading with progress, then messages until the process is closed or lost. Must not know what the
messages of a loaded process mean.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import msgspec

from quire.core.errors import EngineLost, ProtocolMismatch, QuireError, from_record
from quire.core.wire import PROTOCOL_VERSION, Codec
from quire.node.supervision.engine_loading import OnProgress
from quire.node.transports.child import LifeLimits, NodeChild
from quire.node.transports.greeting import greet
from quire.node.transports.messages import Hello, HelloRefused, LoadFailed, Progress
from quire.node.transports.socket import PairSocket

Said = TypeVar("Said")
Announced = TypeVar("Announced", bound=msgspec.Struct)


@dataclass(frozen=True, slots=True)
class ProcessMessages(Generic[Said, Announced]):
    """The wire messages of one kind of process. ``encoder`` writes messages to it, ``decoder``
    reads its messages, ``ready`` is the message that ends its loading."""

    encoder: Codec[Any]
    decoder: Codec[Said]
    ready: type[Announced]


class ProcessLife(Generic[Said, Announced]):
    """One process. ``kind`` and ``name`` ("engine", "m") name it in logs and errors; ``command``
    starts it.

    After ``start`` each message goes to ``on_message``, which raises ``ProtocolMismatch`` for one
    that is not expected. ``on_lost`` is called once with the reason when the process is lost; no
    message follows it, nor ``close``. Belongs to the loop that starts it.
    """

    def __init__(
        self,
        kind: str,
        name: str,
        command: Sequence[str],
        speech: ProcessMessages[Said, Announced],
        on_message: Callable[[Said], None],
        on_lost: Callable[[str], None],
        *,
        limits: LifeLimits | None = None,
        on_progress: OnProgress | None = None,
    ) -> None:
        self._who = f"{kind} {name}"
        self._speech = speech
        self._on_message = on_message
        self._on_lost = on_lost
        self._on_progress = on_progress
        self._token = secrets.token_hex(16)
        self._welcomed = False
        self._gone = False
        self._has_told_why = False
        self._spawned = False
        self._socket = PairSocket(self._on_frames)
        self._limits = limits or LifeLimits()
        self._child = NodeChild(name, self._on_exit, self._limits, command, kind)

    @property
    def pid(self) -> int:
        return self._child.pid

    def silent_s(self) -> float:
        """See ``NodeChild.silent_s``."""
        return self._child.silent_s()

    async def start(
        self, order: type[msgspec.Struct], num_threads: int | None, **wanted: Any
    ) -> Announced:
        """Start the process with a launch order of this type and wait until it has loaded.

        ``wanted`` are the order's fields beside ``version``, ``endpoint`` and ``token``.

        Raises:
            ProtocolMismatch: the process runs another version.
            QuireError: the error of loading, or ``EngineLost`` if the process died.
        """
        self._loaded: asyncio.Future[Announced] = asyncio.get_running_loop().create_future()
        endpoint = self._socket.open()
        launch = order(version=PROTOCOL_VERSION, endpoint=endpoint, token=self._token, **wanted)
        await self._child.spawn(launch, num_threads)
        self._spawned = True
        loaded = await self._loaded
        self._child.frozen_after_s = self._limits.frozen_after_s
        return loaded

    def limit_messages(self, limit_s: float) -> None:
        """Kill the process if it works on one message for longer than ``limit_s`` from now on."""
        self._child.stuck_after_s = limit_s

    def say(self, message: object) -> None:
        """Send a message. It is dropped if the process is lost: ``on_lost`` reports the loss."""
        if not self._gone:
            self._socket.send(self._speech.encoder.encode(message))

    def lose(self, error: QuireError) -> None:
        """Stop reading its messages; before it has loaded, ``error`` becomes the error of
        ``start``."""
        self._has_told_why = True
        self._lose(error, error.message)

    def out_of_turn(self, message: object) -> ProtocolMismatch:
        """The error that ``on_message`` raises for an unexpected message."""
        return ProtocolMismatch(f"{self._who} sent {type(message).__name__} out of turn")

    async def close(self) -> None:
        """End the process and release everything. Idempotent."""
        self._gone = True
        if self._spawned:
            await self._child.close(has_told_why=self._has_told_why)
        self._socket.close()

    def _on_frames(self, frames: list[bytes]) -> None:
        if self._gone:
            return
        try:
            self._take(self._speech.decoder.decode(frames))
        except ProtocolMismatch as exc:
            self.say(HelloRefused(error=exc.record()))
            self.lose(exc)

    def _take(self, message: Said) -> None:
        if self._loaded.done():
            self._on_message(message)
        elif isinstance(message, Hello) and not self._welcomed:
            welcome = greet(message, self._token, self._who)
            self._welcomed = True
            self._socket.connected()
            self.say(welcome)
        elif not self._welcomed:
            raise self.out_of_turn(message)
        elif isinstance(message, self._speech.ready):
            self._loaded.set_result(message)
        else:
            self._on_loading(message)

    def _on_loading(self, message: Said) -> None:
        match message:
            case Progress():
                if self._on_progress is not None:
                    self._on_progress(message.stage, message.fraction)
            case LoadFailed():
                self.lose(from_record(message.error))
            case _:
                raise self.out_of_turn(message)

    def _on_exit(self, reason: str) -> None:
        self._lose(EngineLost(f"{self._who} is lost: {reason}"), reason)

    def _lose(self, error: QuireError, reason: str) -> None:
        if self._gone:
            return
        self._gone = True
        if self._loaded.done():
            self._on_lost(reason)
        else:
            self._loaded.set_exception(error)
