"""Gives answers the form in which they go on at another engine where they can.

Owns which kind of answer goes on in which way, and where. Must not know how the first engine was
chosen.
"""

from __future__ import annotations

from http import HTTPStatus

from quire.cluster.passing.awaited_launches import AwaitedProgram
from quire.cluster.passing.candidates import EngineCandidates
from quire.cluster.passing.following import FollowedAnswer, is_of_program
from quire.cluster.passing.moving import AnswerMoves
from quire.cluster.passing.opened import EVENTS, OpenedAnswer, open_answer
from quire.cluster.passing.outliving import OutlivingAnswer
from quire.cluster.passing.program_rescue import ProgramRescue
from quire.cluster.passing.resuming import ResumingAnswer
from quire.cluster.passing.retelling import RetoldAnswer
from quire.cluster.passing.whole_answers import WholeAnswer
from quire.cluster.requests.answer import RoutedAnswer
from quire.cluster.requests.places import program_lookups
from quire.cluster.requests.request import COMPLETIONS, Request
from quire.core.errors import EngineLost, UnknownHandle
from quire.server.answers.resuming.told_tokens import TELLS_HEADER


class Failover:
    """``moves`` learns of the answers that may be moved; ``rescue`` finds programs."""

    def __init__(
        self, candidates: EngineCandidates, moves: AnswerMoves, rescue: ProgramRescue
    ) -> None:
        self._candidates = candidates
        self._moves = moves
        self._rescue = rescue

    async def opened(self, request: Request, answer: RoutedAnswer) -> OpenedAnswer:
        """Return ``answer``, begun, in a form that goes on at another engine where it can."""
        return await open_answer(await self.begun(request, answer))

    async def begun(self, request: Request, answer: RoutedAnswer) -> RoutedAnswer:
        """Return ``answer``, or in its place one that can go on elsewhere, as soon as its head has
        arrived."""
        answer = self._resuming(request, answer)
        if isinstance(answer, WholeAnswer | AwaitedProgram):
            await answer.arrive()
        return answer

    def _resuming(self, request: Request, answer: RoutedAnswer) -> RoutedAnswer:
        if not answer.head.get(b"content-type").startswith(EVENTS):
            return answer
        if is_of_program(request):
            followed = AwaitedProgram if request.awaits_program else FollowedAnswer
            return followed(answer, request, self._follow)
        if not request.is_resumable:
            return answer
        movable: OutlivingAnswer
        if answer.head.get(TELLS_HEADER.encode()):
            kind = RetoldAnswer if request.streams else WholeAnswer
            movable = kind(answer, request, self._send_on)
        elif request.path == COMPLETIONS:
            movable = ResumingAnswer(answer, request, self._go_on)
        else:
            return answer
        self._moves.add(movable)
        return movable

    async def _follow(self, request: Request, program: str) -> RoutedAnswer:
        """Ask the node that has ``program`` now for its messages."""
        node = await self._rescue.find(program_lookups(program), request.headers)
        engine = None if node is None else self._candidates.engine(node.name)
        if engine is None:
            raise UnknownHandle(f"no node has the program {program[:100]!a}")
        answer = await engine.send(request)
        if answer.head.status == HTTPStatus.OK:
            return answer
        answer.close()
        raise UnknownHandle(f"node {engine.name} does not tell the program's messages")

    async def _send_on(self, request: Request) -> RoutedAnswer:
        """Send ``request`` to the least used engine that is left."""
        self._candidates.note_lost(request)
        for engine in self._candidates.left(request):
            try:
                answer = await engine.send(request)
            except EngineLost:
                continue
            if answer.head.get(TELLS_HEADER.encode()):
                return answer
            answer.close()
        raise self._candidates.nobody(request)

    async def _go_on(self, request: Request, prompt: list[int], num_generated: int) -> RoutedAnswer:
        """Generate after ``prompt`` at the least used engine that is left."""
        self._candidates.note_lost(request)
        for engine in self._candidates.left(request):
            try:
                answer = await engine.start_generate(
                    request, 0, prompt=prompt, num_generated=num_generated
                )
            except EngineLost:
                continue
            if answer.head.status == HTTPStatus.OK:
                return answer
            answer.close()
        raise self._candidates.nobody(request)
