"""The items of an answer as they grow: each makes its own events.

A whole response consists of the same items as its stream, so the two cannot differ.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Any, ClassVar, Protocol

from quire.programs.chat import Dialect
from quire.server.responses.events import EventWriter
from quire.server.schemas.chat import TokenLogprob
from quire.server.schemas.response_items import (
    ItemStatus,
    OutputFunctionCall,
    OutputLogprob,
    OutputMessage,
    OutputReasoning,
    OutputText,
    OutputTopLogprob,
    ReasoningText,
)


class GrowingItem(Protocol):
    """One item at ``index`` of the output. Call ``open`` first, then ``add``, and ``close``
    once."""

    def open(self) -> list[bytes]: ...

    def add(self, text: str) -> bytes: ...

    def close(self, status: ItemStatus) -> list[bytes]: ...

    def item(self) -> OutputMessage | OutputReasoning | OutputFunctionCall:
        """Return the item in its current state."""
        ...


class ItemIds:
    """The ids of the items of a response. They are derived from the response's id, so that another
    node that continues it uses the same ones."""

    def __init__(self, response_id: str) -> None:
        self._response_id = response_id

    def item(self, prefix: str, index: int) -> str:
        return f"{prefix}_{self._digest(index)[:32]}"

    def calls(self, dialect: Dialect) -> Callable[[], str]:
        """Return a function that makes ids of calls, one after the other, in the form of
        ``programs.chat``."""
        digests = (self._digest(f"call/{number}") for number in count())
        if dialect is Dialect.MISTRAL:
            return lambda: next(digests)[:9]
        return lambda: f"call_{next(digests)[:24]}"

    def _digest(self, what: object) -> str:
        return hashlib.sha256(f"{self._response_id}/{what}".encode()).hexdigest()


class GrowingText(ABC):
    """An item of one text part. ``kind``: the prefix of its id; ``event``: that of its events;
    ``scores``: the field of a delta's log probabilities, if it has them."""

    kind: ClassVar[str]
    event: ClassVar[str]
    scores: ClassVar[Mapping[str, list[Any]]] = {}

    def __init__(self, writer: EventWriter, index: int, ids: ItemIds) -> None:
        self._writer = writer
        self._index = index
        self._id = ids.item(self.kind, index)
        self._status: ItemStatus = "in_progress"
        self._texts: list[str] = []
        self._place = {"item_id": self._id, "output_index": index, "content_index": 0}
        self._delta = writer.deltas(f"{self.event}.delta", **self._place, **self.scores)

    def open(self) -> list[bytes]:
        empty = self.item().model_copy(update={"content": []})
        write = self._writer.event
        return [
            write("response.output_item.added", output_index=self._index, item=empty.model_dump()),
            write("response.content_part.added", **self._place, part=self._part().model_dump()),
        ]

    def add(self, text: str) -> bytes:
        self._texts.append(text)
        return self._delta(text)

    def close(self, status: ItemStatus) -> list[bytes]:
        self._status = status
        part, item = self._part().model_dump(), self.item().model_dump()
        whole = {name: part[name] for name in ("text", *self.scores)}
        write = self._writer.event
        return [
            write(f"{self.event}.done", **self._place, **whole),
            write("response.content_part.done", **self._place, part=part),
            write("response.output_item.done", output_index=self._index, item=item),
        ]

    @abstractmethod
    def item(self) -> OutputMessage | OutputReasoning: ...

    @abstractmethod
    def _part(self) -> OutputText | ReasoningText: ...


class GrowingMessage(GrowingText):
    """A message."""

    kind = "msg"
    event = "response.output_text"
    scores: ClassVar[Mapping[str, list[Any]]] = {"logprobs": []}

    def __init__(self, writer: EventWriter, index: int, ids: ItemIds) -> None:
        super().__init__(writer, index, ids)
        self._logprobs: list[OutputLogprob] = []

    def add_scored(self, text: str, logprobs: Sequence[TokenLogprob]) -> bytes:
        """Like ``add``, with the log probabilities of the tokens that made ``text``."""
        scored = [output_logprob(one) for one in logprobs]
        self._texts.append(text)
        self._logprobs += scored
        shown = [one.model_dump() for one in scored]
        return self._writer.event(f"{self.event}.delta", **self._place, delta=text, logprobs=shown)

    def item(self) -> OutputMessage:
        return OutputMessage(id=self._id, status=self._status, content=[self._part()])

    def _part(self) -> OutputText:
        return OutputText(text="".join(self._texts), logprobs=list(self._logprobs))


class GrowingReasoning(GrowingText):
    """Reasoning, in the words of the model."""

    kind = "rs"
    event = "response.reasoning_text"

    def item(self) -> OutputReasoning:
        return OutputReasoning(id=self._id, status=self._status, content=[self._part()])

    def _part(self) -> ReasoningText:
        return ReasoningText(text="".join(self._texts))


class GrowingCall:
    """A call of one of the client's functions."""

    def __init__(
        self, writer: EventWriter, index: int, ids: ItemIds, call_id: str, name: str
    ) -> None:
        self._writer = writer
        self._index = index
        self._id = ids.item("fc", index)
        self._call_id = call_id
        self._name = name
        self._status: ItemStatus = "in_progress"
        self._arguments: list[str] = []
        self._place = {"item_id": self._id, "output_index": index}
        self._delta = writer.deltas("response.function_call_arguments.delta", **self._place)

    def open(self) -> list[bytes]:
        return [
            self._writer.event(
                "response.output_item.added",
                output_index=self._index,
                item=self.item().model_dump(),
            )
        ]

    def add(self, text: str) -> bytes:
        self._arguments.append(text)
        return self._delta(text)

    def close(self, status: ItemStatus) -> list[bytes]:
        self._status = status
        item = self.item()
        write = self._writer.event
        return [
            write(
                "response.function_call_arguments.done",
                **self._place,
                name=item.name,
                arguments=item.arguments,
            ),
            write("response.output_item.done", output_index=self._index, item=item.model_dump()),
        ]

    def item(self) -> OutputFunctionCall:
        return OutputFunctionCall(
            id=self._id,
            call_id=self._call_id,
            name=self._name,
            arguments="".join(self._arguments),
            status=self._status,
        )


def output_logprob(token: TokenLogprob) -> OutputLogprob:
    return OutputLogprob(
        token=token.token,
        logprob=token.logprob,
        bytes=token.bytes or [],
        top_logprobs=[
            OutputTopLogprob(token=top.token, logprob=top.logprob, bytes=top.bytes or [])
            for top in token.top_logprobs
        ],
    )
