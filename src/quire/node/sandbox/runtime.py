"""The ``Runtime`` of untrusted programs: guests in sandbox processes.

Owns the loop thread that talks to the processes, and the choice of a process for each program. No
code of a guest runs in the node's process.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import threading
from collections import Counter
from collections.abc import Coroutine, Mapping, Sequence
from concurrent.futures import Future
from functools import lru_cache, partial
from typing import Any, NamedTuple, TypeVar

import msgspec

from quire.core.config import SandboxConfig
from quire.core.errors import Draining, InvalidArgument
from quire.core.events import REFUSED
from quire.core.ids import TenantId
from quire.core.interfaces import Clock, ProgramPort, ServedModel
from quire.core.quotas import Quotas
from quire.node.loops import LoopCalls, call_on
from quire.node.quotas import tightest
from quire.node.sandbox import messages as s
from quire.node.sandbox.guest import LIMITS, SandboxedProgram
from quire.node.sandbox.link import LinkSettings, SandboxLink
from quire.node.supervision.health import SandboxHealth
from quire.programs.arguments import NO_NAMES
from quire.programs.capabilities import Capabilities
from quire.programs.chat import dialect_of
from quire.programs.runtime.host import check_traits
from quire.programs.runtime.replay_port import ReplayPort
from quire.programs.runtime.running import Connect, RunningProgram
from quire.programs.sandbox.limits import GuestLimits
from quire.programs.sandbox.messages import GuestLaunch, GuestModel, Manifest
from quire.programs.sandbox.program import GuestProgram, code_digest
from quire.programs.services.children import Family

logger = logging.getLogger(__name__)

T = TypeVar("T")

_KEPT_MANIFESTS = 1024


class SandboxRuntime:
    """Runs guests. ``launch``, ``programs`` and ``close`` are for any thread, ``inspect`` for any
    loop.

    The processes start with the first program. ``grace_s``: how long a cancelled program may clean
    up.
    """

    def __init__(self, settings: LinkSettings, clock: Clock, grace_s: float = 5.0) -> None:
        self._settings = settings
        self._config = settings.config
        self._grace_s = grace_s
        self._links = [
            SandboxLink(f"{index}", settings, clock) for index in range(self._config.processes)
        ]
        self._manifests: dict[str, Manifest] = {}
        self._programs: dict[RunningProgram, SandboxedProgram] = {}
        self._placed: Counter[SandboxLink] = Counter()
        self._family_numbers = itertools.count(1)
        self._models: tuple[Sequence[ServedModel], tuple[GuestModel, ...]] = ((), ())
        # most launches have the same quotas
        self._limits_of = lru_cache(maxsize=1024)(partial(guest_limits, self._config))
        self._calls = LoopCalls()
        self._lock = threading.Lock()
        self._closed = False
        self._loop: asyncio.AbstractEventLoop
        self._thread: threading.Thread | None = None

    def _ensure_thread(self) -> None:
        """Start the loop thread, with the first program that needs it."""
        with self._lock:
            if self._closed:
                raise Draining("the sandbox is closing and starts no further program")
            if self._thread is None:
                self._loop = asyncio.new_event_loop()
                self._calls.begin(self._loop)
                self._thread = threading.Thread(
                    target=self._loop.run_forever, name="quire-sandbox", daemon=True
                )
                self._thread.start()

    def pids(self) -> list[int]:
        """Process ids of the running processes."""
        return [pid for link in self._links if (pid := link.pid) is not None]

    def health(self) -> dict[str, SandboxHealth]:
        """The health of each process, by its name. For any thread."""
        return {link.name: link.health() for link in self._links}

    async def inspect(self, code: bytes) -> GuestProgram:
        """The program in ``code``, checked in the sandbox: a module is compiled, a source file's
        top-level code runs. The result is cached by code.

        Raises:
            InvalidArgument: it is not a program, or too large.
            QuireError: this node has no sandbox.
        """
        if len(code) > self._config.max_upload_bytes:
            raise InvalidArgument(
                f"a program of {len(code)} bytes; at most {self._config.max_upload_bytes} are "
                "taken here"
            )
        digest = code_digest(code)
        manifest = self._manifests.get(digest)
        if manifest is None:
            self._ensure_thread()
            work = self._links[0].inspect(code, self._limits_of(Quotas()))
            manifest = await asyncio.wrap_future(self._submit(work))
            self._remember(digest, manifest)
        return GuestProgram(code, digest, manifest)

    def _remember(self, digest: str, manifest: Manifest) -> None:
        self._manifests[digest] = manifest
        if len(self._manifests) > _KEPT_MANIFESTS:
            del self._manifests[next(iter(self._manifests))]

    def launch(
        self,
        program: GuestProgram,
        args: Sequence[str],
        connect: Connect,
        tenant: TenantId,
        family: Family | None = None,
        named: Mapping[str, str] = NO_NAMES,
    ) -> RunningProgram:
        """See ``Runtime.launch``. ``tenant``: the owner. ``family``: the programs whose processor
        time is counted together with its own.

        Raises:
            TraitMissing: the default model lacks a trait that the manifest names.
            Draining: the runtime is closing.
        """
        self._ensure_thread()
        with self._lock:
            home = self._home_of(family)
            link = home.link
            guest = SandboxedProgram(
                program.name, link, self._loop, self._calls.soon, self._grace_s
            )
            port = guest.port = connect(guest, self._loop)
            if isinstance(port, ReplayPort):
                guest.record(port)
            models = list(port.models())
            if models:
                try:
                    check_traits(program.name, program.manifest.traits, models[0])
                except BaseException:
                    port.close(REFUSED)
                    raise
            running = RunningProgram(
                port.program, program.name, guest.mailbox, guest.request_cancel
            )
            guest.running = running
            self._programs[running] = guest
            self._placed[link] += 1
        running.add_done_callback(self._forget)
        given = self._guest_models(models)
        arguments = Arguments(tuple(args), dict(named))
        self._calls.soon(partial(self._start, guest, program, arguments, given, home, tenant))
        return running

    def _start(
        self,
        guest: SandboxedProgram,
        program: GuestProgram,
        arguments: Arguments,
        models: tuple[GuestModel, ...],
        home: _Home,
        tenant: TenantId,
    ) -> None:
        def begin(number: int) -> None:
            start = self._start_of(program, arguments, guest.port, number, home, tenant)
            guest.link.start_guest(start, program, models)

        guest.start(begin)

    def _home_of(self, family: Family | None) -> _Home:
        """The process for the program: that of its family, whose time is counted in one process."""
        if family is None:
            return _Home(self._emptiest_link())
        home = family.home
        if not isinstance(home, _Home):
            is_root = family.num_descendants == 0
            cpu_ms = family.max_cpu_ms
            if is_root:  # a sandboxed parent has the node's limit too
                cpu_ms = self._limits_of(Quotas(max_cpu_ms=cpu_ms)).cpu_ms
            home = _Home(self._emptiest_link(), next(self._family_numbers), cpu_ms)
            family.home = home
        return home

    def _emptiest_link(self) -> SandboxLink:
        """The process with the fewest programs."""
        return min(self._links, key=self._placed.__getitem__)

    def _guest_models(self, models: Sequence[ServedModel]) -> tuple[GuestModel, ...]:
        """``models`` as guests see them; the same object while they do not change."""
        known, made = self._models
        if models != known:
            made = tuple(_guest_model(model) for model in models)
            self._models = (models, made)
        return made

    def close(self) -> None:
        """Cancel every program, wait for their ends, end the processes and the thread.

        Blocks for at most the grace times of programs and processes. Idempotent.
        """
        with self._lock:
            self._closed = True
            thread, self._thread = self._thread, None
        if thread is None:
            return
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result()
        call_on(self._loop, self._loop.stop)
        thread.join()
        self._loop.close()

    async def _close(self) -> None:
        running = list(self._programs)
        for program in running:
            program.cancel("the sandbox is closing")
        await asyncio.gather(*(program.result() for program in running), return_exceptions=True)
        await asyncio.gather(*(link.close() for link in self._links))

    def _submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def _forget(self, running: RunningProgram) -> None:
        with self._lock:
            guest = self._programs.pop(running, None)
            if guest is not None:
                self._placed[guest.link] -= 1

    def _start_of(
        self,
        program: GuestProgram,
        arguments: Arguments,
        port: ProgramPort,
        number: int,
        home: _Home,
        tenant: TenantId,
    ) -> s.Start:
        return s.Start(
            guest=number,
            tenant=tenant,
            name=program.name,
            digest=program.digest,
            launch=GuestLaunch(
                program=port.program,
                args=arguments.args,
                named=arguments.named,
                models=(),
                quotas=port.quotas,
                seed=port.seed,
                mailbox_capacity=LIMITS.capacity,
                mailbox_limit=LIMITS.limit,
                max_message_bytes=LIMITS.max_message_bytes,
                grace_s=self._grace_s,
            ),
            limits=self._limits_of(port.quotas),
            hosts=allowed_hosts(program.manifest.hosts, self._config.hosts),
            allow_private_hosts=self._config.allow_private_hosts,
            is_recorded=isinstance(port, ReplayPort),
            family=home.family,
            family_cpu_ms=home.cpu_ms,
        )


class Arguments(NamedTuple):
    """The arguments of one launch, by position and by name."""

    args: tuple[str, ...]
    named: dict[str, str]


class _Home(msgspec.Struct, frozen=True):
    """The process of a family, its number there and its shared limit of processor time (``None``:
    no shared limit)."""

    link: SandboxLink
    family: int = 0
    cpu_ms: int | None = None


def guest_limits(config: SandboxConfig, quotas: Quotas) -> GuestLimits:
    """The smallest of the limits of node, tenant and program."""
    bounds = tightest(
        quotas,
        Quotas(
            max_cpu_ms=config.max_cpu_ms,
            max_memory_bytes=config.max_memory_bytes,
            max_calls_per_s=config.max_calls_per_s,
            max_outstanding_io=config.max_outstanding_io,
        ),
    )
    assert bounds.max_cpu_ms is not None
    assert bounds.max_memory_bytes is not None
    assert bounds.max_calls_per_s is not None
    assert bounds.max_outstanding_io is not None
    return GuestLimits(
        memory_bytes=bounds.max_memory_bytes,
        turn_ms=config.max_turn_ms,
        cpu_ms=bounds.max_cpu_ms,
        calls_per_s=bounds.max_calls_per_s,
        outstanding_io=bounds.max_outstanding_io,
    )


@lru_cache(maxsize=1024)
def allowed_hosts(wanted: tuple[str, ...], allowed: tuple[str, ...] | None) -> tuple[str, ...]:
    """The hosts that match both the manifest's and the node's patterns; ``None`` allows any
    host."""
    return Capabilities(hosts=wanted).narrowed(Capabilities(hosts=allowed)).hosts or ()


def _guest_model(model: ServedModel) -> GuestModel:
    return GuestModel(
        id=model.id,
        base=model.base,
        info=model.info,
        vocab_size=model.tokenizer.vocab_size,
        eos_token_ids=tuple(model.tokenizer.eos_token_ids),
        has_chat_template=model.chat_template is not None,
        defaults=dict(model.defaults),
        special_tokens=dict(model.special_tokens),
        adapter=model.adapter,
        node_traits=model.node_traits,
        dialect=dialect_of(model).value,
    )
