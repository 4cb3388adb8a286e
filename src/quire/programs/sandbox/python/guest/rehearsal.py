"""Runs small programs before the component's memory is saved, so that a guest's first turn does not
pay for first-time work: converters are created, caches filled, bytecode is specialised.

The host's side is simulated by a few fixed answers.
"""

from __future__ import annotations

import json
import linecache
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from quire.core.actions import ReplyValue
from quire.core.calls import Issue
from quire.core.commands import Command, Decode, GetNextDist, Sample, Sampled
from quire.core.commands import Dists as DistsReply
from quire.core.decoding import DecodeChunk, Dist
from quire.core.engine_info import EngineInfo, LayerGroup, PoolSpec
from quire.core.errors import InvalidArgument
from quire.core.ids import CommandId, ModelId, ProgramId
from quire.core.quotas import Quotas
from quire.core.traits import NODE_TRAITS
from quire.programs.sandbox import messages as m
from quire.programs.sandbox.python.guest.session import MODULE_NAME, SOURCE_NAME, GuestSession

NUM_PROGRAMS = 12
"""Enough for the interpreter to specialise the code of every turn."""

SOURCE = '''
import asyncio
import json
from dataclasses import dataclass

from quire.core.errors import QuireError
from quire.programs.sdk import Context, Tool, Toolbox, inferlet, temperature


@dataclass(frozen=True)
class Step:
    text: str


def add(left: int, right: int = 1) -> int:
    """Adds."""
    return left + right


@inferlet("rehearsal", hosts=["example.org"])
async def main(api, *args):
    """What programs do."""
    print("here")
    steps = [Step(await api.receive())]
    toolbox = Toolbox([Tool.of(add)])
    async with Context(api) as ctx:
        ctx.fill_chat([{"role": "user", "content": "hello"}], tools=toolbox.schemas())
        text = await ctx.generate_until(max_tokens=4, stop="!")
        forks = [ctx.fork().fill(" and") for _ in range(2)]
        await asyncio.gather(*(fork.generate(max_tokens=4) for fork in forks))
        async for part in ctx.generate(max_tokens=4, sampler=temperature(0.5, top_p=0.9, seed=1)):
            await api.send(part)
    queue = api.create_queue()
    pages, embeds = api.alloc_kvpage(queue, 2), api.alloc_emb(queue, 2)
    api.embed_txt(queue, [1, 2], [0, 1], embeds)
    api.forward(queue, pages, embeds, pages, embeds)
    dist = await api.get_next_dist(queue, embeds[1])
    token, = await api.sample(queue, embeds[1])
    api.dealloc_kvpage(queue, pages)
    await api.synchronize(queue)
    reply = await api.http_get("https://example.org/")
    steps.append(Step(reply.json()["text"]))
    try:
        await api.http_post("https://example.org/", "body")
    except QuireError as exc:
        steps.append(Step(exc.message))
    async with asyncio.timeout(5):
        await asyncio.sleep(0)
    child = asyncio.create_task(asyncio.sleep(0, "child"))
    assert await child == "child" and dist.max_index() == 1 and token == 2
    return json.loads(json.dumps([step.text for step in steps] + [text]))
'''


SHORT_SOURCE = """
from quire.programs.sdk import Context, inferlet


@inferlet()
async def main(api, *args):
    await api.send("here")
    await api.synchronize(api.create_queue())
    return await api.receive()
"""


def rehearse() -> None:
    """Run the programs to their ends several times, while the component is built."""
    with _unnoticed():
        for _ in range(NUM_PROGRAMS):
            GuestSession(_answer).inspect(SOURCE)
            _run(GuestSession(_answer), SOURCE)
            _run(GuestSession(_answer), SHORT_SOURCE, _SHORT_COMPILED)


def warm() -> None:
    """Run a short program in a fresh instance, which shares its memory with the image until it
    writes."""
    with _unnoticed():
        _run(GuestSession(_answer), SHORT_SOURCE, _SHORT_COMPILED)


@contextmanager
def _unnoticed() -> Iterator[None]:
    """Restore what a program changes outside of its session."""
    streams = sys.stdout, sys.stderr
    try:
        yield
    finally:
        sys.stdout, sys.stderr = streams
        linecache.cache.pop(SOURCE_NAME, None)
        sys.modules.pop(MODULE_NAME, None)


def _run(session: GuestSession, source: str, compiled: str = "") -> None:
    turn = _turn(session.load(source, compiled, LAUNCH))
    events: list[m.GuestEvents] = [m.Message("a message")]
    while not (turn.calls and isinstance(turn.calls[-1], m.Ended)):
        for call in turn.calls:
            events += _events(call)
        turn = _turn(session.wake(_json(events)))
        events = []
    ended = turn.calls[-1]
    assert isinstance(ended, m.Ended)
    assert ended.error is None, f"the rehearsal failed: {ended.error}"


def _events(call: m.GuestCalls) -> list[m.GuestEvents]:
    match call:
        case Issue():
            return [event for command in call.commands for event in _replies(command)]
        case m.Send():
            return [m.Taken(1)]
        case m.Fetch(method="GET"):
            body = '{"text": "fetched"}'
            return [m.Fetched(call.request, 200, {"a": "b"}, body, body.encode())]
        case m.Fetch():
            return [m.FetchFailed(call.request, InvalidArgument("refused").record())]
    return []


def _replies(command: Command) -> list[m.GuestEvents]:
    reply: ReplyValue = None
    match command:
        case Decode():
            last = DecodeChunk([2], finish_reason="length", seed=1)
            return [
                m.Replied(command.id, DecodeChunk([1], num_cached_tokens=0), False),
                m.Replied(command.id, last, True),
            ]
        case GetNextDist():
            reply = DistsReply([Dist([1, 2], [0.5, 0.25])])
        case Sample():
            reply = Sampled([2])
    return [m.Replied(CommandId(command.id), reply, True)]


def _answer(question: str) -> str:
    name = json.loads(question)[0]
    values = {
        "tokenize": [1, 2, 3],
        "detokenize": "text",
        "token_bytes": ["dGV4dA=="] * 64,
        "render": "a prompt",
        "log": None,
    }
    return json.dumps({"value": values[name], "error": None})


def _launch() -> m.GuestLaunch:
    pool = PoolSpec(
        page_size=4,
        groups=(LayerGroup(num_blocks=64, num_host_blocks=0, bytes_per_block=1),),
        num_embeds=64,
        num_token_slots=64,
        max_sequences=8,
        max_batch_tokens=64,
    )
    traits = ["Allocate", "Decode", "Forward", "InputText", "OutputText", "Sample", "Tokenize"]
    info = EngineInfo(
        model="m", family="f", content="c", layout="l", vocab_size=128, hidden_size=1, num_layers=1,
        max_model_len=256, dtype="float32", device="cpu", backend="torch", num_parameters=1,
        pool=pool, traits=traits,
    )  # fmt: skip
    model = m.GuestModel(
        ModelId("m"), ModelId("m"), info, 128, (0,), True, {"a": 1.0}, {"eos_token": "e"}, None,
        NODE_TRAITS, "hermes",
    )  # fmt: skip
    return m.GuestLaunch(
        program=ProgramId(1),
        args=("an argument",),
        models=(model,),
        quotas=Quotas(),
        seed=1,
        mailbox_capacity=64,
        mailbox_limit=1024,
        max_message_bytes=1 << 20,
        grace_s=5.0,
    )


def _turn(text: str) -> m.Turn:
    turn: m.Turn = msgspec.json.decode(text, type=m.Turn)
    return turn


def _json(message: object) -> str:
    return msgspec.json.encode(message).decode()


LAUNCH = _json(_launch())
_SHORT_COMPILED = GuestSession(_answer).compile(SHORT_SOURCE)
