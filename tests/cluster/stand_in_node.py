"""A node that answers as a real one does, also the three calls, without a model.

Its tokens are characters. What it generates depends on every token before, so that an answer shows
whether each engine had exactly the tokens that it should. KV cache is which prompts it has seen.
"""

from __future__ import annotations

import asyncio
import itertools
import zlib
from array import array
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import msgspec
from http_peer import Asked, Cut, HttpPeer, Said, refused, said

from quire.core.errors import EngineLost
from quire.server.answers.resuming.told_tokens import (
    COMMENT,
    ENGINE_LOST,
    TELLS_HEADER,
    PartialAnswer,
    ToldChunk,
)
from quire.server.answers.resuming.told_whole import WHOLE, WholeHead
from quire.server.events import DATA_EVENTS
from quire.server.microserving.headers import RECEIVED_HEADER

MODEL = "stand-in"
CLUSTER_KEY = "the-cluster-key"
_numbers = itertools.count(1)


def continuation(prompt: str, num_tokens: int) -> str:
    """What every stand-in says after ``prompt``."""
    text = prompt
    for _ in range(num_tokens):
        text += chr(ord("a") + sum(ord(c) * (i + 1) for i, c in enumerate(text)) % 26)
    return text[len(prompt) :]


@dataclass
class Lease:
    """``arrived``: the indices of tokens that have come. ``over``: all have come, or it has
    ended."""

    prompt: str
    begin: int
    end: int
    arrived: set[int] = field(default_factory=set)
    over: asyncio.Event = field(default_factory=asyncio.Event)

    def look(self) -> None:
        if self.arrived == set(range(self.begin, self.end)):
            self.over.set()


class StandInNode:
    """``fleet`` are the nodes that can reach one another, by name."""

    def __init__(self, name: str, fleet: dict[str, StandInNode]) -> None:
        self.name = name
        self.fleet = fleet
        fleet[name] = self
        self.peer = HttpPeer(self._answer)
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.asked: list[Asked] = []
        self.has_been_asked = asyncio.Event()
        self.has_been_called = asyncio.Event()
        self.call_refusals: dict[str, Said] = {}
        self.call_gates: dict[str, asyncio.Event] = {}
        """Calls that wait until their event is set."""
        self.call_cuts: set[str] = set()
        """Calls at which the connection breaks."""
        self.cached: list[str] = []
        self.leases: dict[str, Lease] = {}
        self.num_prefilled = 0
        self.num_awaiting = 0
        """Requests that have begun to wait for their lease."""
        self.health: dict[str, Any] = {"status": "ok", "detail": ""}
        self.health_status = 200
        self.models = [MODEL]
        self.stored: set[str] = set()
        self.programs: list[dict[str, Any]] = []
        """Its records of programs and sessions, for who empties it."""
        self.silent = asyncio.Event()
        self.silent.set()
        """Cleared: it accepts requests and answers none, as a stopped process does."""
        self.has_engine = asyncio.Event()
        self.has_engine.set()
        """Cleared by ``lose_engine``: what is asked of its model waits."""
        self.cut_after: int | None = None
        """Its next answers break off after so many tokens."""
        self.loses_engine = False
        """Whether its told streams are cut as by a node whose engine is lost, and not as by a node
        that is."""
        self.padding = ""
        """In the body of each told answer that is not streamed."""
        self.failure: tuple[int, str] | None = None
        """Status and code with which told answers that are not streamed end."""
        self.num_streams = 0
        self.begun_behind: list[str] = []
        """What of each told stream was generated elsewhere."""
        self.refusal: Said | None = None
        self.tokens: asyncio.Semaphore | None = None
        """Streamed answers take one of it for each token."""
        self.whole_tokens: asyncio.Semaphore | None = None
        """And told ones that are not streamed, of this."""

    def lose_engine(self) -> None:
        """Be a node that loads its engine again: it lives, and says that it can serve nothing."""
        self.has_engine.clear()
        self.health = {"status": "unhealthy", "detail": "restarting", "models": {MODEL: False}}
        self.health_status = 503

    def load_engine(self) -> None:
        self.has_engine.set()
        self.health = {"status": "ok", "detail": "", "models": {MODEL: True}}
        self.health_status = 200

    # -- its API -----------------------------------------------------------------------------------

    async def _answer(self, asked: Asked) -> Said:
        await self.silent.wait()
        if asked.path == "/health":
            return said(self.health, self.health_status)
        if asked.path == "/v1/models" and not self.models:
            return refused(503, "engine_lost", "no model is loaded yet: try again in a moment")
        if asked.path == "/v1/models":
            return said({"object": "list", "data": [{"id": model} for model in self.models]})
        if asked.path.startswith("/v1/microserving/"):
            return await self._microserving(asked)
        if asked.target == "/v1/programs" and "x-quire-cluster-key" in asked.headers:
            return said({"data": self.programs})  # a router empties it
        self.asked.append(asked)
        self.has_been_asked.set()
        await self.has_engine.wait()
        if self.refusal is not None:
            return self.refusal
        received = asked.headers.get(RECEIVED_HEADER)
        await self._waited_for(received)
        if received is not None and self.leases.pop(received, None) is None:
            return refused(404, "unknown_handle", "no such lease")
        if asked.path == "/tokenize":
            text = _rendered(asked.json) if "messages" in asked.json else asked.json["prompt"]
            return said({"count": len(text), "tokens": list(map(ord, text))})
        if asked.method == "GET":
            name = asked.path.rpartition("/")[2]
            return said({"id": name}) if name in self.stored else refused(404, "x", "not here")
        if asked.headers.get(TELLS_HEADER):
            return self._told(asked)
        if asked.path == "/v1/completions":
            return self._generate(asked.json["prompt"], asked.json, 0)
        if asked.json.get("messages"):
            self._prefill(_rendered(asked.json))
        return said({"node": self.name, "path": asked.target})

    async def _microserving(self, asked: Asked) -> Said:
        if asked.headers.get("x-quire-cluster-key") != CLUSTER_KEY:
            return refused(401, "unauthorized", "no cluster key")
        call = asked.path.rpartition("/")[2]
        if call == "engines":
            return said({"engines": [self._described()]})
        if call == "index":
            return refused(404, "not_found", "it tells nothing of its cache")
        if call == "channel":
            return refused(404, "not_found", "its streams come over their own connections")
        if call == "records":
            return refused(404, "not_found", "it runs no programs")
        body = asked.json
        self.calls.append((call, body))
        self.has_been_called.set()
        if call in self.call_refusals:
            return self.call_refusals[call]
        if call in self.call_gates:
            await self.call_gates[call].wait()
        if call in self.call_cuts:
            raise Cut
        if call == "start_generate":
            await self._waited_for(body.get("kv_addr_info"))
        if call == "start_generate" and asked.headers.get(TELLS_HEADER):
            self._start_generate(body)  # takes its lease
            return self._told(asked)
        answer: Said = getattr(self, f"_{call}")(body)
        return answer

    def _described(self) -> dict[str, Any]:
        return {
            "engine": "e", "epoch": 3, "model": MODEL, "num_blocks": 10, "free_blocks": 7,
            "running": 0, "waiting": 0, "load": 0.0,
        }  # fmt: skip

    # -- the three calls ---------------------------------------------------------------------------

    def _prep_recv(self, body: dict[str, Any]) -> Said:
        prompt = _text(body["prompt"])
        end = body["end"] if body["end"] >= 0 else len(prompt) + body["end"]
        if not 0 <= end <= len(prompt):
            return refused(400, "invalid_argument", f"end {end} of {len(prompt)}")
        matched = min(self._matched(prompt), end)
        number = f"{self.name}:{next(_numbers)}"
        self.leases[number] = lease = Lease(prompt, matched, end)
        lease.look()
        return said(
            {
                "kv_addr_info": number,
                "matched_len": matched,
                "num_tokens": end - matched,
                "end": end,
                "expires_in_s": 30.0,
                "rank": {"engine": "e", "epoch": 3},
            }
        )

    def _remote_send(self, body: dict[str, Any]) -> Said:
        prompt = _text(body["prompt"])
        receiver = self.fleet[body["kv_addr_info"].partition(":")[0]]
        lease = receiver.leases.get(body["kv_addr_info"])
        begin, end = body["begin"], body["end"]
        if lease is None or body["recv_rank"] != {"engine": "e", "epoch": 3}:
            return refused(404, "unknown_handle", "no such lease")
        if not lease.begin <= begin <= end <= lease.end or prompt[:end] != lease.prompt[:end]:
            return refused(400, "invalid_argument", f"{begin}:{end} of {lease}")
        self._prefill(prompt[:end])
        lease.arrived |= set(range(begin, end))
        lease.look()
        if lease.over.is_set():
            receiver.cached.append(prompt[: lease.end])
        return said({"num_tokens": end - begin, "num_bytes": end - begin, "elapsed_s": 0.0})

    def _start_generate(self, body: dict[str, Any]) -> Said:
        prompt = _text(body["prompt"])
        begin = body["begin"]
        if "kv_addr_info" in body:
            lease = self.leases.pop(body["kv_addr_info"], None)
            if lease is None:
                return refused(404, "unknown_handle", "no such lease")
            if lease.arrived != set(range(lease.begin, begin)) or lease.end < begin:
                return refused(400, "invalid_argument", f"begin {begin}: {lease}")
            self.cached.append(prompt[:begin])
        elif begin > self._matched(prompt):
            return refused(400, "invalid_argument", "begin without a lease")
        return self._generate(prompt, body, body.get("num_generated", 0))

    def _leases(self, body: dict[str, Any]) -> Said:
        lease = self.leases.pop(body["kv_addr_info"], None)
        if lease is not None:
            lease.over.set()
        return said({})

    async def _waited_for(self, number: str | None) -> None:
        """Return when all has come to the lease, or it has ended."""
        if (lease := self.leases.get(number or "")) is not None:
            self.num_awaiting += 1
            await lease.over.wait()

    # -- generating --------------------------------------------------------------------------------

    def _matched(self, prompt: str) -> int:
        return max((_common(prompt, known) for known in self.cached), default=0)

    def _prefill(self, prompt: str) -> None:
        self.num_prefilled += len(prompt) - self._matched(prompt)
        self.cached.append(prompt)

    def _generate(self, prompt: Any, body: dict[str, Any], num_generated: int) -> Said:
        text = _text(prompt)
        self._prefill(text)
        answer = continuation(text, body.get("max_tokens", 16) - num_generated)
        assert num_generated == 0 or text.endswith(
            continuation(text[:-num_generated], num_generated)
        )
        if body.get("stream"):
            pieces = self._events(text, answer, body, num_generated)
            return Said(pieces=pieces, kind="text/event-stream; charset=utf-8")
        if self.cut_after is not None:
            return Said(pieces=self._cut(), kind="application/json")
        return said({"choices": [{"index": 0, "text": answer, "finish_reason": "length"}]})

    async def _events(
        self, prompt: str, answer: str, body: dict[str, Any], num_generated: int
    ) -> AsyncIterator[bytes]:
        self.num_streams += 1
        cut_after, number_of_stream = self.cut_after, next(_numbers)
        for number, token in enumerate(answer, 1):
            if self.tokens is not None:
                await self.tokens.acquire()
            if cut_after is not None and number > cut_after:
                raise Cut
            choice: dict[str, Any] = {"index": 0, "text": token, "finish_reason": None}
            if number == len(answer):
                choice["finish_reason"] = "length"
            if body.get("return_token_ids"):
                choice["token_ids"] = [ord(token)]
                if number == 1:
                    choice["prompt_token_ids"] = list(map(ord, prompt))
            yield _event({"id": f"cmpl-{number_of_stream}", "choices": [choice]})
        if cut_after == len(answer):
            raise Cut
        if body.get("stream_options"):
            usage = {
                "prompt_tokens": len(prompt),
                "completion_tokens": len(answer),
                "prompt_tokens_details": {"cached_tokens": len(prompt)},
            }
            yield _event({"id": f"cmpl-{number_of_stream}", "choices": [], "usage": usage})
        yield b"data: [DONE]\n\n"

    def _told(self, asked: Asked) -> Said:
        """An answer that another node can go on with."""
        self.num_streams += 1
        prompt, before, key = _rendered(asked.json), "", f"key-{next(_numbers)}"
        if asked.told:
            generated = msgspec.msgpack.decode(asked.told, type=PartialAnswer)
            (choice,) = generated.choices
            before = "".join(map(chr, array("i", zlib.decompress(choice.tokens))))
            key = generated.key
        self.begun_behind.append(before)
        num_tokens = asked.json.get("max_tokens", 16)
        answer = continuation(prompt + before, num_tokens - len(before))
        assert continuation(prompt, num_tokens) == before + answer
        tell = self._told_events if asked.json.get("stream") else self._told_whole
        return Said(
            pieces=tell(asked, prompt, before, answer, key),
            kind="text/event-stream",
            headers={TELLS_HEADER: "1"},
        )

    async def _told_whole(
        self, asked: Asked, prompt: str, before: str, answer: str, key: str
    ) -> AsyncIterator[bytes]:
        """Cut behind the last token, it is cut in the middle of its body."""
        cut_after = self.cut_after
        for number, token in enumerate(answer):
            if self.whole_tokens is not None:
                await self.whole_tokens.acquire()
            if cut_after == number:
                raise Cut
            ids = tuple(map(ord, prompt + before)) if number == 0 else ()
            if number < len(answer) - 1:
                yield (
                    COMMENT + msgspec.json.encode(ToldChunk(key, 1, 2, [ord(token)], ids)) + b"\n\n"
                )
        said = {"id": key, "text": before + answer, "padding": self.padding}
        body = msgspec.json.encode(said)
        head = WholeHead(len(body))
        if self.failure is not None:
            status, code = self.failure
            body = refused(status, code, "it has failed").body
            head = WholeHead(len(body), status, {"retry-after": "1"}, code)
        end = WHOLE + msgspec.json.encode(head) + b"\n\n" + body
        if cut_after is not None and cut_after >= len(answer):
            yield end[:-2]
            raise Cut
        yield end

    async def _told_events(
        self, asked: Asked, prompt: str, before: str, answer: str, key: str
    ) -> AsyncIterator[bytes]:
        """Two events for each token; where it is cut, one of them."""
        numbers = itertools.count()
        name = b"event: told\n" if asked.path == "/v1/responses" else b""
        cut_after = self.cut_after
        for number, token in enumerate(answer):
            if self.tokens is not None:
                await self.tokens.acquire()
            yield name + _event({"id": key, "of": token, "sequence_number": next(numbers)})
            if cut_after == number and self.loses_engine:
                yield ENGINE_LOST + b"\n\n" + _FAILURES[asked.path]
                return
            if cut_after == number:
                raise Cut
            ids = tuple(map(ord, prompt + before)) if number == 0 else ()
            told = ToldChunk(key, 1, 2, [ord(token)], ids)
            last = number == len(answer) - 1
            comment = b"" if last else COMMENT + msgspec.json.encode(told) + b"\n\n"
            said = {"id": key, "text": token, "sequence_number": next(numbers)}
            yield name + _event(said) + comment
        yield _LAST_EVENTS.get(asked.path, b"data: [DONE]\n\n")

    async def _cut(self) -> AsyncIterator[bytes]:
        raise Cut
        yield b""


_LAST_EVENTS = {
    "/v1/messages": b"event: message_stop\n\n",
    "/v1/responses": b"event: response.completed\n\n",
}


_FAILURES = {
    "/v1/chat/completions": b"".join(DATA_EVENTS.errors(EngineLost("killed"))) + DATA_EVENTS.done,
    "/v1/messages": b"event: error\ndata: {}\n\n",
    "/v1/responses": b"event: response.failed\ndata: {}\n\n",
}


def _event(value: object) -> bytes:
    return b"data: " + msgspec.json.encode(value) + b"\n\n"


def _text(prompt: Any) -> str:
    return prompt if isinstance(prompt, str) else "".join(map(chr, prompt))


def _rendered(body: dict[str, Any]) -> str:
    if "prompt" in body:
        return _text(body["prompt"])
    if "input" in body:
        return f"<user>{body['input']}<assistant>"
    turns = [f"<{turn['role']}>{turn['content']}" for turn in body["messages"]]
    return "".join(turns) + "<assistant>"


def _common(one: str, other: str) -> int:
    length = 0
    with suppress(IndexError):
        while one[length] == other[length]:
            length += 1
    return length
