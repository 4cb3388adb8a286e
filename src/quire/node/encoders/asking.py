"""Sends encoding requests to control on behalf of programs, and collects the rows that return.

Lives on the edge's loop. Owns the requests in flight and their command numbers, which differ from
those of all programs. Must not know how texts become sequences nor what rows are for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count

import numpy as np

from quire.core.actions import Deliver, Fail
from quire.core.batch import F32, I32
from quire.core.calls import AskEncoder, Cancel, ControlCall
from quire.core.encoding import Encode, Encoded
from quire.core.errors import EngineFault, ErrorRecord, from_record
from quire.core.events import Called
from quire.core.ids import CommandId, ModelId, ProgramId
from quire.engine.encoders.text import EncodedText
from quire.node.control.control_thread import ControlThread
from quire.node.control.reply_router import NODE_COMMANDS
from quire.node.encoders.aside import aside
from quire.programs.services.encoding import CallOrder


@dataclass(slots=True)
class BatchCount:
    """In how many batches the encoder has computed the rows of requests, and how many of these were
    short: sent with room in them though others waited."""

    num_batches: int = 0
    num_short_batches: int = 0


@dataclass(frozen=True, slots=True)
class OnBehalf:
    """The program on whose behalf a request is made, and the order of the call. ``batches``: counts
    the batches in which the rows are computed."""

    program: ProgramId
    order: CallOrder = CallOrder()  # noqa: RUF009 - immutable
    batches: BatchCount | None = None


@dataclass(slots=True)
class _Request:
    whose: OnBehalf
    rows: F32
    done: asyncio.Future[None]
    batches: dict[int, bool] = field(default_factory=dict)
    """Whether each batch was short, by its number."""


class EncoderRequests:
    """The requests in flight. ``ask`` belongs to the edge's loop, where control's answers arrive
    too."""

    def __init__(self, control: ControlThread) -> None:
        self._control = control
        self._numbers = map(CommandId, count(NODE_COMMANDS))
        self._requests: dict[CommandId, _Request] = {}

    def start(self) -> None:
        """Begin to receive control's answers. Call it on the edge's loop."""
        loop = asyncio.get_running_loop()
        self._control.answer_node(loop, self._answered, self._control_failed)

    async def ask(
        self, model: ModelId, dimensions: int, sequences: Sequence[EncodedText], whose: OnBehalf
    ) -> F32:
        """A row for each of ``sequences`` [S, D]. When it is cancelled, nothing more is computed.

        Raises:
            QuotaExceeded: too many sequences of the tenant are waiting, or too many commands.
            EngineLost: the encoder was lost twice under one of them, or is given up.
            EngineFault: it has given numbers that are not finite, or rows of another size.
            InvalidArgument: a sequence that the model cannot run.
            ProgramCancelled: the program has ended.
        """
        rows = np.empty((len(sequences), dimensions), np.float32)
        if not sequences:
            return rows
        number = next(self._numbers)
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._requests[number] = _Request(whose, rows, done)
        try:
            self._post(model, await aside(sequences, _command, number, sequences), whose)
            await done
            _check_finite(model, rows)
            return rows
        except asyncio.CancelledError:
            self._call(whose.program, Cancel(number))
            raise
        finally:
            del self._requests[number]

    def _post(self, model: ModelId, command: Encode, whose: OnBehalf) -> None:
        self._call(whose.program, AskEncoder(model, command, *whose.order))
        if self._control.failure is not None:  # checked last: a failure just now answers nothing
            raise self._control.failure

    def _call(self, program: ProgramId, call: ControlCall) -> None:
        self._control.post_gathered(lambda t: Called(time_s=t, program=program, call=call))

    async def wait_idle(self) -> None:
        """Return when no request is in flight."""
        while self._requests:
            await asyncio.wait([request.done for request in self._requests.values()])
            await asyncio.sleep(0)

    # -- control's answers ---------------------------------------------------------------------

    def _answered(self, answer: Deliver | Fail) -> None:
        request = self._requests.get(answer.command)
        if request is None or request.whose.program != answer.program or request.done.done():
            return  # the request has ended
        if isinstance(answer, Fail):
            request.done.set_exception(from_record(answer.error))
            return
        reply = answer.reply
        if not isinstance(reply, Encoded):
            return  # the program has made up the number, for a command of its own
        part = request.rows[reply.first : reply.first + len(reply.rows)]
        if part.shape != reply.rows.shape:
            request.done.set_exception(_other_size(reply.rows.shape, part.shape))
            return
        part[:] = reply.rows
        request.batches[reply.batch] = reply.is_short
        if answer.last:
            counted = request.whose.batches
            if counted is not None:
                counted.num_batches += len(request.batches)
                counted.num_short_batches += sum(request.batches.values())
            request.done.set_result(None)

    def _control_failed(self, error: ErrorRecord) -> None:
        for request in self._requests.values():
            if not request.done.done():
                request.done.set_exception(from_record(error))


def _check_finite(model: ModelId, rows: F32) -> None:
    """Refuse rows that nobody can use: JSON cannot say them, and no order has a place for them.
    Other requests of the same batch keep theirs."""
    are_finite = np.isfinite(rows).all(axis=1)
    if not are_finite.all():
        place = int(np.argmin(are_finite))
        raise EngineFault(
            f"encoder {model} gave numbers that are not finite for text {place}: see whether its "
            "weights are whole, and whether its dtype has the range that they need"
        )


def _other_size(given: tuple[int, ...], wanted: tuple[int, ...]) -> EngineFault:
    return EngineFault(
        f"an encoder gave rows of {given[1:]} numbers in place of {wanted[1:]}: start it again"
    )


def _command(number: CommandId, sequences: Sequence[EncodedText]) -> Encode:
    return Encode(
        id=number,
        tokens=_flat([one.tokens for one in sequences]),
        types=_flat([one.types for one in sequences]),
        lengths=np.asarray([len(one.tokens) for one in sequences], np.int32),
    )


def _flat(parts: Sequence[tuple[int, ...]]) -> I32:
    return np.fromiter((value for part in parts for value in part), np.int32)
