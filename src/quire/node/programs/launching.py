"""Launches programs and their children: checks the launch and chooses the runtime.

Belongs to the edge's loop. Must not know how a program is executed nor what it is connected to.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial

from msgspec import structs

from quire.core.errors import InvalidArgument, UnknownHandle
from quire.core.ids import ProgramId, TenantId
from quire.core.quotas import Quotas
from quire.node.control.program_start import ProgramStart
from quire.node.encoders.programs import EncodedTokens
from quire.node.programs.children import Ancestry, ChildLauncher, LaunchedChild, MovedChild
from quire.node.programs.connecting import ProgramConnector
from quire.node.programs.handle import ProgramHandle
from quire.node.programs.programs import ProgramTable
from quire.node.programs.records import ProgramLaunch
from quire.node.programs.restarting.handing_over import HandedProgram, Origin, Programs
from quire.node.programs.restarting.restarts import Restarts
from quire.node.programs.uploads import UploadTable
from quire.node.quotas import tightest
from quire.node.sandbox.runtime import SandboxRuntime
from quire.node.sessions.sessions import SessionTable
from quire.node.tenant_gate import TenantGate
from quire.programs.arguments import check
from quire.programs.inferlet import Inferlet
from quire.programs.runtime.native import NativeRuntime
from quire.programs.runtime.replay_log import ReplayLog
from quire.programs.runtime.running import Connect, RunningProgram
from quire.programs.sandbox.program import GuestProgram
from quire.programs.services.children import ChildWanted, Family

_NONE: Programs = {}


@dataclass(frozen=True, slots=True)
class Runtimes:
    """The runtimes: native programs run on ``users``, untrusted ones in ``sandbox``."""

    users: NativeRuntime
    sandbox: SandboxRuntime


class ProgramLauncher:
    """Launches programs. ``inspect`` makes a sandboxed program from a child's code. A launched
    program is in ``table``; its parent is in the table too, or is a session. ``check_model`` raises
    an error if no model is loaded."""

    def __init__(
        self,
        admission: TenantGate,
        table: ProgramTable,
        sessions: SessionTable,
        runtimes: Runtimes,
        connector: ProgramConnector,
        inspect: Callable[[bytes], Awaitable[GuestProgram]],
        uploads: UploadTable,
        check_model: Callable[[], None],
    ) -> None:
        self._admission = admission
        self._check_model = check_model
        self._table = table
        self._sessions = sessions
        self._runtimes = runtimes
        self._connector = connector
        self._children = ChildLauncher(self._launch_child, inspect, uploads)

    def launch(
        self,
        program: Inferlet | GuestProgram,
        launch: ProgramLaunch,
        quotas: Quotas | None = None,
        family: Family | None = None,
        encoded: EncodedTokens | None = None,
        taken: HandedProgram | None = None,
        programs: Programs = _NONE,
        above: ProgramHandle | None = None,
    ) -> ProgramHandle:
        """See ``Node.launch``. ``family``, ``encoded``: those of the parent that launches it.
        ``taken``: the record of a program that comes from another node, with its running
        descendants; ``programs``: their code. ``above``: the program that launches it."""
        self._admission.check()
        if program.needs_model:
            self._check_model()
        if taken is not None:
            launch = taken.launch(launch)
        if launch.form != program.form:
            launch = structs.replace(launch, form=program.form)
        parent = None if launch.parent is None else self.parent(launch.parent, launch.tenant)
        bounds = tightest(self._admission.tenant(launch.tenant).quotas, program.quotas, quotas)
        start = _start_of(program, launch, parent, bounds, shares_quotas=family is not None)
        family = family or Family(bounds.max_children, bounds.max_cpu_ms)
        encoded = EncodedTokens(bounds.max_encoded_tokens, encoded)
        ancestry = Ancestry(program, bounds, family, encoded, launch.seed, launch.priority)
        restarts = Restarts(ReplayLog()) if program.restartable else None
        if taken is not None:
            restarts = taken.restarts()
        connect = partial(self._connector.connect, start, ancestry, self._children, restarts)
        begin = self._beginning(program, launch, connect, family)
        handle = self._table.launch(
            program.name,
            launch,
            begin,
            restarts,
            Origin(program, quotas),
            None if taken is None else taken.id,
            above,
        )
        if taken is not None:
            handle.life.go_on()
            self._take_children(handle, taken, programs, ancestry)
        return handle

    def take(self, programs: Programs, handed: HandedProgram, tenant: TenantId) -> ProgramHandle:
        """See ``Node.take``."""
        self._table.check_room(tenant, [one.id for one in handed.family()])
        program, launch = programs[handed.id], ProgramLaunch(tenant)
        return self.launch(program, launch, handed.quotas, taken=handed, programs=programs)

    def _take_children(
        self, parent: ProgramHandle, taken: HandedProgram, programs: Programs, ancestry: Ancestry
    ) -> None:
        """Launch the children that came with ``parent``. The parent already runs but cannot ask for
        a child before this returns: services answer on this loop."""
        state, family = parent.life.children, ancestry.family
        for child in taken.children:
            state.unread[child.id] = deque(child.unread)
            if child.program is None:
                assert child.ended is not None
                state.children[child.id] = MovedChild(child.id, child.name, child.ended)
                continue
            launch = ProgramLaunch(parent.tenant, parent=parent.id)
            program, quotas = programs[child.id], child.program.quotas
            if isinstance(program, GuestProgram):
                program = program.narrowed(ancestry.program.capabilities)
            family.num_descendants += 1
            handle = self.launch(
                program, launch, quotas, family, ancestry.encoded, child.program, programs, parent
            )
            handle.when_ended(family.leave)
            state.children[child.id] = LaunchedChild(handle, child.num_read)

    def _beginning(
        self,
        program: Inferlet | GuestProgram,
        launch: ProgramLaunch,
        connect: Connect,
        family: Family,
    ) -> Callable[[], RunningProgram]:
        """The function that starts the program in its runtime.

        Raises:
            InvalidArgument: see ``check_guest``.
        """
        if isinstance(program, GuestProgram):
            check_guest(program, launch.args, launch.named)
            return partial(
                self._runtimes.sandbox.launch,
                program,
                launch.args,
                connect,
                launch.tenant,
                family,
                launch.named,
            )
        users = self._runtimes.users
        return partial(users.launch, program, launch.args, connect, launch.named)

    def _launch_child(
        self,
        program: Inferlet | GuestProgram,
        args: tuple[str, ...],
        wanted: ChildWanted,
        quotas: Quotas,
        parent: Ancestry,
    ) -> ProgramHandle:
        above = self._table.of(wanted.parent.program)
        launch = ProgramLaunch(
            wanted.parent.tenant,
            args,
            parent=None if above is None else above.id,
            parent_thread=wanted.thread,
            priority=parent.priority,
            seed=wanted.seed,
            named=wanted.named,
        )
        return self.launch(program, launch, quotas, wanted.family, parent.encoded, above=above)

    def parent(self, public_id: str, tenant: TenantId) -> ProgramId:
        """The running program or open session of ``tenant`` with this id; a session is also found
        by the client's id.

        Raises:
            UnknownHandle: there is none, or it has ended.
        """
        session = self._sessions.program_of(tenant, public_id)
        if session is not None:
            return session
        handle = self._table.find(public_id, tenant)
        if handle.ended:
            raise UnknownHandle(f"the parent {public_id!r} has ended: name another, or none")
        return handle.program


def _start_of(
    program: Inferlet | GuestProgram,
    launch: ProgramLaunch,
    parent: ProgramId | None,
    bounds: Quotas,
    *,
    shares_quotas: bool,
) -> ProgramStart:
    """The program's entry for the process table."""
    return ProgramStart(
        tenant=launch.tenant,
        form=program.form,
        name=program.name,
        kind=program.name,
        client_id=launch.client_id,
        parent=parent,
        parent_thread=launch.parent_thread,
        priority=launch.priority,
        quotas=bounds,
        shares_quotas=shares_quotas,
        traceparent=launch.traceparent,
    )


def check_guest(program: GuestProgram, args: tuple[str, ...], named: Mapping[str, str]) -> None:
    """Check arguments against a guest's manifest. (The native runtime checks those of a native
    program against its annotations.)

    Raises:
        InvalidArgument: an argument is missing, unknown, or of the wrong type.
    """
    if program.is_module and named:
        raise InvalidArgument(
            f"program {program.name!r} is a WebAssembly module, which takes its arguments by place "
            f"alone: give {', '.join(named)} without a name",
            param="args",
        )
    if program.manifest.parameters is not None:
        check(program.name, program.manifest.parameters, args, named)
