"""The main module of a sandbox process: ``python -m quire.node.sandbox.sandbox_process``.

Shakes hands with the node, builds the guest image (or finds it in the cache), then runs guests
until it is told to end. It ends by SIGTERM or when its node is gone. The guests' HTTP requests are
made here. The node's process never imports this module.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from pathlib import Path
from typing import Any, cast

import msgspec

from quire import __version__
from quire.core.config import EngineConfig
from quire.core.errors import (
    ErrorRecord,
    ProgramTerminated,
    ProtocolMismatch,
    QuireError,
    from_record,
)
from quire.core.ids import ModelId
from quire.core.interpreter import collect_seldom, settle
from quire.core.wire import PROTOCOL_VERSION
from quire.node.loops import in_daemon_thread
from quire.node.models import ModelFiles, read_model_files
from quire.node.sandbox import messages as s
from quire.node.transports.child_link import EXIT_LOAD_FAILED, EXIT_REFUSED
from quire.node.transports.child_process import LifeLine
from quire.node.transports.messages import Hello, HelloRefused, LoadFailed, Progress, Welcome
from quire.node.transports.socket import PairSocket
from quire.programs.chat.template import ChatTemplate
from quire.programs.runtime.recorded_network import WholeAnswers
from quire.programs.sandbox.answers import GuestTools
from quire.programs.sandbox.host.freed_memory import FreedMemory, find_trim
from quire.programs.sandbox.host.hosting import GuestHost
from quire.programs.sandbox.host.templates import Templates
from quire.programs.sandbox.messages import (
    Fetched,
    FetchFailed,
    GuestCalls,
    GuestEvents,
    GuestModel,
    Inspected,
)
from quire.programs.sandbox.python.component import OnProgress
from quire.programs.sandbox.wasm.cache import BuildCache
from quire.programs.services.http_clients import TenantClients
from quire.programs.services.network import Network, NetworkPolicy

logger = logging.getLogger(__name__)

_ABANDON_S = 1.0
_LINGER_MS = 1000

ReadFiles = Callable[[EngineConfig], ModelFiles]


class CollectedReport:
    """A ``Report`` that gathers the calls of guests and sends them once per round."""

    def __init__(self, say: Callable[[s.FromSandbox], None]) -> None:
        self._say = say
        self._reports: list[s.GuestReport] = []

    def calls(self, guest: int, calls: msgspec.Raw) -> None:
        # encoded when it was checked; the wire message carries the bytes
        self._reports.append(s.GuestReport(guest, cast(list[GuestCalls], calls), []))

    def log(self, guest: int, level: str, text: str, fields: Mapping[str, Any]) -> None:
        line = s.LogText(level, text, dict(fields))
        self._reports.append(s.GuestReport(guest, [], [line]))

    def spent(self, guest: int, cpu_ns: int, memory_bytes: int | None) -> None:
        self._reports.append(s.GuestReport(guest, [], [], s.Spent(cpu_ns, memory_bytes)))

    def round_ended(self) -> None:
        if self._reports:
            reports, self._reports = self._reports, []
            self._say(s.Reports(reports=reports))


class SandboxProcess:
    """The process after its launch order. ``read_files`` reads tokenizer and template of a
    model."""

    def __init__(self, order: s.SandboxOrder, read_files: ReadFiles) -> None:
        self._order = order
        self._read_files = read_files
        self._decoder = s.node_codec()
        self._encoder = s.sandbox_codec()
        self._socket = PairSocket(self._on_frames)
        self._tools: dict[str, GuestTools] = {}
        self._host: GuestHost | None = None
        self._code: dict[str, bytes] = {}
        self._models: tuple[GuestModel, ...] = ()
        self._tools_by_model: dict[str, GuestTools] = {}
        self._late: dict[int, list[GuestEvents]] = {}
        """Guests whose code is being compiled, and the messages that have arrived for them."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._templates: Templates

    async def run(self) -> int:
        """Run until the process is told to end; return its exit status."""
        loop = asyncio.get_running_loop()
        self._end: asyncio.Future[int] = loop.create_future()
        self._welcomed: asyncio.Future[None] = loop.create_future()
        loop.add_signal_handler(signal.SIGTERM, self._finish, 0)
        self._socket.connect(self._order.endpoint, _LINGER_MS)
        self._say(
            Hello(
                version=PROTOCOL_VERSION,
                release=__version__,
                pid=os.getpid(),
                token=self._order.token,
            )
        )
        try:
            await self._welcomed
            return self._end.result() if self._end.done() else await self._serve(loop)
        finally:
            self._socket.close()

    async def _serve(self, loop: asyncio.AbstractEventLoop) -> int:

        def progress(stage: str, fraction: float) -> None:
            loop.call_soon_threadsafe(self._say, Progress(stage=stage, fraction=fraction))

        try:
            cache = BuildCache(Path(self._order.cache_dir))
            self._templates = Templates(loop, cache, self._order.num_warm)
            if not await self._loaded(progress):
                return self._end.result()
        except QuireError as exc:
            self._say(LoadFailed(error=exc.record()))
            await self._end  # the node ends this process once it has read why
            return EXIT_LOAD_FAILED
        async with TenantClients() as clients:
            self._clients = clients
            freed = FreedMemory(loop, find_trim())
            self._host = GuestHost(
                loop,
                CollectedReport(self._say),
                on_start=freed.guest_began,
                on_end=freed.guest_ended,
            )
            settle()
            self._say(s.SandboxReady(models=tuple(map(ModelId, self._tools))))
            try:
                return await self._end
            finally:
                for task in self._tasks:
                    task.cancel()
                await self._host.close()
                self._templates.close()

    async def _loaded(self, progress: OnProgress) -> bool:
        """Load everything. False: the process was told to end meanwhile, and the build has
        stopped."""
        loading = asyncio.create_task(self._load(progress))
        either: list[asyncio.Future[Any]] = [loading, self._end]
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not self._end.done():
            loading.result()
            return True
        self._templates.abandon()
        await asyncio.wait({loading}, timeout=_ABANDON_S)  # it cleans up behind itself
        loading.cancel()
        await asyncio.gather(loading, return_exceptions=True)
        self._templates.close()
        return False

    async def _load(self, progress: OnProgress) -> None:
        """Build and read on threads that the exit does not wait for: a build may wait for that of
        another node and cannot be interrupted."""
        self._templates.load(await in_daemon_thread(self._templates.build, progress))
        await in_daemon_thread(self._read_models)

    def _read_models(self) -> None:
        for config in self._order.engines:
            try:
                files = self._read_files(config)
                template = None
                if files.chat_template is not None:
                    template = ChatTemplate(
                        files.chat_template, special_tokens=files.special_tokens
                    )
            except QuireError as exc:  # its guests get the error with their next call
                logger.warning("no tokenizer for model %s: %s", config.name, exc)
                continue
            self._tools[config.name] = GuestTools(files.tokenizer, template)

    # -- messages ----------------------------------------------------------------------------------

    def _say(self, message: s.FromSandbox) -> None:
        self._socket.send(self._encoder.encode(message))

    def _on_frames(self, frames: list[bytes]) -> None:
        try:
            self._on_message(self._decoder.decode(frames))
        except ProtocolMismatch as exc:
            logger.error("%s", exc)
            self._finish(EXIT_REFUSED)

    def _on_message(self, message: s.ToSandbox) -> None:
        match message:
            case s.Tell() if self._host is not None:
                for news in message.news:
                    self._tell(self._host, news)
            case s.Starts() if self._host is not None:
                for start in message.starts:
                    self._start_guest(self._host, start)
            case s.Keep() if self._host is not None:
                self._keep(message)
            case s.OrderFetch() if self._host is not None:
                done = partial(self._say_done, message.guest)
                self._host.fetch(message.guest, message.call, done)
            case s.Stop() if self._host is not None:
                self._late.pop(message.guest, None)
                self._host.stop(message.guest, message.error)
            case s.Inspect() if self._host is not None:
                self._spawn(self._inspect(message))
            case Welcome() if not self._welcomed.done():
                self._welcomed.set_result(None)
            case HelloRefused():
                logger.error("%s", from_record(message.error))
                self._finish(EXIT_REFUSED)
            case _:
                raise ProtocolMismatch(f"the node sent {type(message).__name__} out of turn")

    def _keep(self, keep: s.Keep) -> None:
        for digest in keep.forget:
            self._code.pop(digest, None)
        self._code.update(keep.code)
        if keep.models is not None:
            self._models = keep.models
            self._tools_by_model = {
                str(model.id): self._tools[model.base]
                for model in keep.models
                if model.base in self._tools
            }

    def _start_guest(self, host: GuestHost, start: s.Start) -> None:
        code = self._code[start.digest]
        if self._templates.is_ready(code, start.digest):
            self._start(host, start, code)
        else:
            self._late[start.guest] = []
            self._spawn(self._start_late(host, start, code))

    def _finish(self, status: int) -> None:
        if not self._end.done():
            self._end.set_result(status)
        if not self._welcomed.done():
            self._welcomed.set_result(None)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _tell(self, host: GuestHost, news: s.GuestNews) -> None:
        late = self._late.get(news.guest)
        if late is None:
            host.tell(news.guest, news.events)
        else:
            late.extend(news.events)

    async def _start_late(self, host: GuestHost, start: s.Start, code: bytes) -> None:
        try:
            await self._templates.prepare(code)
        except Exception as exc:
            if self._late.pop(start.guest, None) is not None:
                host.refuse(start.guest, _said(exc))
            return
        if (events := self._late.pop(start.guest, None)) is not None:
            self._start(host, start, code)
            host.tell(start.guest, events)

    def _start(self, host: GuestHost, start: s.Start, code: bytes) -> None:
        host.start(
            start.guest,
            start.name,
            self._templates.runner_of(code, start.digest, start.limits),
            msgspec.structs.replace(start.launch, models=self._models),
            limits=start.limits,
            network=lambda: self._network(start),
            is_recorded=start.is_recorded,
            models=self._tools_by_model,
            family=(None if start.family_cpu_ms is None else (start.family, start.family_cpu_ms)),
        )

    def _network(self, start: s.Start) -> Network:
        policy = NetworkPolicy(hosts=start.hosts, allow_private=start.allow_private_hosts)
        network = Network(self._clients.of(start.tenant), policy)
        return WholeAnswers(network) if start.is_recorded else network

    def _say_done(self, guest: int, event: Fetched | FetchFailed) -> None:
        self._say(s.FetchDone(guest=guest, event=event))

    async def _inspect(self, wanted: s.Inspect) -> None:
        try:
            inspected = await self._templates.inspect(wanted.code, wanted.limits)
        except Exception as exc:
            inspected = Inspected(error=_said(exc))
        self._say(s.Inspection(number=wanted.number, inspected=inspected))


def _said(error: Exception) -> ErrorRecord:
    """The record of any error: the node waits for an answer, also when, say, the disk is full."""
    if isinstance(error, QuireError):
        return error.record()
    logger.error("a program cannot be prepared", exc_info=error)
    return ProgramTerminated(
        f"the program cannot be prepared: {type(error).__name__}: {error}; see the node's log"
    ).record()


class LoopWatch:
    """Measures for heartbeats how long the loop has not turned. Called from another thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._asked_s: float | None = None

    def busy_s(self) -> float:
        now_s, asked_s = time.monotonic(), self._asked_s
        if asked_s is None:
            asked_s = self._asked_s = now_s
            self._loop.call_soon_threadsafe(self._turned)
        return now_s - asked_s

    def _turned(self) -> None:
        self._asked_s = None


async def run(order: s.SandboxOrder, lifeline: LifeLine, read_files: ReadFiles) -> int:
    lifeline.answer(LoopWatch(asyncio.get_running_loop()).busy_s)
    return await SandboxProcess(order, read_files).run()


def main(read_files: ReadFiles = read_model_files) -> int:
    lifeline = LifeLine()
    order = lifeline.read_order(s.SandboxOrder)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    collect_seldom()
    return asyncio.run(run(order, lifeline, read_files))


if __name__ == "__main__":
    sys.exit(main())
