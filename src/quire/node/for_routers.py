"""The work of a node for the routers before it: what its engines have cached, and moves of its
programs.

Owns none of it: it joins the parts of the node. ``family_move`` stops programs that move away. Must
not know HTTP, nor why a router asks. Belongs to the edge's loop.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

from quire.control import EngineIndex, HeldText, IndexPlace
from quire.core.errors import UnknownHandle
from quire.core.ids import EngineId, TenantId
from quire.core.record_parts import RecordsWanted, ToldRecords
from quire.node.parts import NodeParts
from quire.node.programs.handle import ProgramHandle
from quire.node.programs.restarting.family_move import family_left_behind
from quire.node.programs.restarting.handing_over import HandedProgram, Programs


class ForRouters:
    """The work of the node with these ``parts`` for routers."""

    def __init__(self, parts: NodeParts) -> None:
        self._parts = parts

    def index_changes(self, known: Mapping[EngineId, IndexPlace]) -> tuple[EngineIndex, ...]:
        """The changes of the engines' prefix indexes since the places in ``known``."""
        return self._parts.control.call(lambda controller: controller.index_changes(known))

    def held_texts(self, program: ProgramHandle, max_tokens: int) -> tuple[HeldText, ...]:
        """The texts that a launched program has in pages, up to ``max_tokens`` tokens in all."""
        return self._parts.control.call(lambda one: one.held_texts(program.program, max_tokens))

    def take(self, programs: Programs, handed: HandedProgram, tenant: TenantId) -> ProgramHandle:
        """Continue a program that another node has handed over (``hand_over_family``), and its
        descendants; ``programs`` are their code.

        Raises:
            AlreadyExists: this node has a program with one of their ids.
        """
        return self._parts.launcher.take(programs, handed, tenant)

    async def told_records(self, asked: RecordsWanted, tenant: TenantId) -> ToldRecords:
        """The next parts of the records of ``tenant``'s restartable programs, for a reader that
        keeps copies: then messages to the programs' clients wait until it has the parts before
        them. Programs that the reader names as gone run on another node, and end here.

        Raises:
            AlreadyExists: another reader keeps them.
        """
        table = self._parts.programs
        for gone in asked.gone:
            with suppress(UnknownHandle):
                family_left_behind(table.find(gone, tenant))
        return await table.records(tenant).read(asked)

    def left_records(self, reader: str, tenant: TenantId) -> None:
        """Note that a reader of records has left, or its connection is lost."""
        self._parts.programs.records(tenant).leave(reader)
