"""Restartable programs leave a node that is drained, and their clients at the router notice a
pause."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from real_nodes import RealNode, real_nodes
from router_world import ADMIN_HEADERS, World, world
from websockets.asyncio.client import ClientConnection, connect

from quire.cluster.engines.node_engine import NodeEngine
from quire.cluster.nodes.pool import NotReached
from quire.cluster.passing import program_moves
from quire.cluster.passing.program_moves import ProgramMoves, ProgramsLeft
from quire.core.errors import CapacityError, EngineLost, QuotaExceeded
from quire.programs.library import LIBRARY
from quire.programs.sdk import Context, inferlet, temperature
from quire.server.programs.attachments import HAS_MOVED
from quire.server.routes import attach

NUM_TURNS = 4


@inferlet("interview", restartable=True)
async def interview(api):  # type: ignore[no-untyped-def]
    """Answers each message on the same pages."""
    context = Context(api).fill("an interview: ")
    answers = []
    for _ in range(NUM_TURNS):
        context.fill(await api.receive())
        answers.append(await context.generate_until(max_tokens=5, sampler=temperature(1.0)))
        await api.send(answers[-1])
    return answers


@inferlet("reads", restartable=True)
async def reads(api, text):  # type: ignore[no-untyped-def]
    """Reads a long text, and goes on with it in two ways."""
    context = Context(api).fill(text)
    await context.generate_until(max_tokens=40, sampler=temperature(1.0), ignore_eos=True)
    fork = context.fork()
    for one in (context, fork):
        one.fill(await api.receive())
        await one.generate_until(max_tokens=20, sampler=temperature(1.0), ignore_eos=True)
        await api.send(one.text)
    await api.receive()
    answers = [
        await one.fill(" and on").generate_until(max_tokens=4, ignore_eos=True)
        for one in (context, fork)
    ]
    return [len(context), len(fork), *answers]


@inferlet("recites", restartable=True)
async def recites(api):  # type: ignore[no-untyped-def]
    """Sends each message back."""
    heard = []
    for _ in range(NUM_TURNS):
        heard.append(await api.receive())
        await api.send(heard[-1])
    return heard


@inferlet("leads", restartable=True)
async def leads(api, *children):  # type: ignore[no-untyped-def]
    """Passes its messages on to its children, and tells what they answer."""
    started = [await api.launch(child) for child in children]
    for _ in range(NUM_TURNS):
        word = await api.receive()
        for child in started:
            await child.send(word)
        await api.send(" ".join([await child.receive() for child in started]))
    return [await child.join() for child in started]


@inferlet("stays")
async def stays(api):  # type: ignore[no-untyped-def]
    await api.receive()


@pytest.fixture(scope="module")
def nodes() -> Iterator[list[RealNode]]:
    with real_nodes(2) as nodes:
        yield nodes


NUM_TRIES = 30
"""Of programs that may end before they can be moved."""


@pytest.fixture(autouse=True)
def shipped(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("interview", "leads", "reads", "recites", "stays"):
        monkeypatch.setitem(LIBRARY._modules, name, __name__)


async def launched(w: World, name: str = "interview", *args: str) -> tuple[str, str]:
    """Its id, and the name of its node."""
    answer = await w.http.post("/v1/programs", json={"program": name, "args": args})
    assert answer.status_code == 201, answer.text
    return answer.json()["id"], answer.headers["x-quire-node"]


async def say(w: World, program: str, text: str) -> None:
    body = {"signal": "message", "message": text}
    answer = await w.http.post(f"/v1/programs/{program}/signal", json=body)
    assert answer.status_code == 202, answer.text


async def drain(w: World, name: str) -> dict[str, Any]:
    path = f"/router/nodes/{name}/drain"
    answer = await w.http.post(path, headers=ADMIN_HEADERS)
    assert answer.status_code == 200, answer.text
    assert (await w.http.delete(path, headers=ADMIN_HEADERS)).status_code == 200
    return dict(answer.json())


async def frames(lines: AsyncIterator[str]) -> AsyncIterator[dict[str, Any]]:
    async for line in lines:
        if line.startswith("data: {"):
            yield json.loads(line[6:])


async def test_an_attached_client_stays_attached(nodes: list[RealNode]) -> None:
    async with world(nodes=nodes) as w:
        program, at = await launched(w)
        url = f"{w.url.replace('http', 'ws')}/v1/programs/{program}/attach"
        said = []
        async with connect(url, proxy=None) as socket:
            for turn in range(NUM_TURNS):
                await socket.send(json.dumps({"type": "message", "text": f"question {turn}"}))
                frame = json.loads(await socket.recv())
                assert (frame["type"], frame["sequence"]) == ("message", turn + 1)
                said.append(frame["text"])
                if turn < 2:  # there and back
                    left = await drain(w, at)
                    assert (left["num_programs_moved"], left["programs_that_stay"]) == (1, {})
                    found = await w.http.get(f"/v1/programs/{program}")
                    assert found.headers["x-quire-node"] != at
                    at = found.headers["x-quire-node"]
            ended = json.loads(await socket.recv())
        assert ended["type"] == "ended"
        assert ended["program"]["id"] == program
        assert ended["program"]["result"] == said
        ids = [one["id"] for one in (await w.http.get("/v1/programs")).json()["data"]]
        assert ids.count(program) == 1


@pytest.fixture
def arrived(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set when a node has read the frame with "question 1"."""
    arrived, receive = threading.Event(), attach._Connection._receive

    async def reads(connection: attach._Connection) -> bytes:
        frame = await receive(connection)
        if b"question 1" in frame:
            arrived.set()
        return frame

    monkeypatch.setattr(attach._Connection, "_receive", reads)
    return arrived


async def ask(socket: ClientConnection, turn: int) -> None:
    await socket.send(json.dumps({"type": "message", "text": f"question {turn}"}))


async def check_recited(socket: ClientConnection) -> None:
    told = [json.loads(frame) async for frame in socket]
    said = [f"question {turn}" for turn in range(NUM_TURNS)]
    assert [one.get("text") for one in told] == [*said[1:], None]
    assert told[-1]["program"]["result"] == said


async def test_what_the_old_node_was_still_sent_goes_to_the_new_one(
    nodes: list[RealNode], arrived: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    send_messages = attach._Connection._send_messages

    async def hears_more_before_it_closes(connection: Any, reader: Any) -> int:
        code = await send_messages(connection, reader)
        if code == HAS_MOVED:
            assert await asyncio.to_thread(arrived.wait, 10.0)
        return code

    monkeypatch.setattr(attach._Connection, "_send_messages", hears_more_before_it_closes)
    async with world(nodes=nodes) as w:
        program, at = await launched(w, "recites")
        url = f"{w.url.replace('http', 'ws')}/v1/programs/{program}/attach"
        async with connect(url, proxy=None) as socket:
            await ask(socket, 0)
            await socket.recv()
            assert (await drain(w, at))["num_programs_moved"] == 1
            for turn in range(1, NUM_TURNS):
                await ask(socket, turn)
            await check_recited(socket)


@pytest.mark.parametrize("is_taken", [True, False])
async def test_what_is_said_during_the_move_is_heard_once(
    nodes: list[RealNode],
    is_taken: bool,
    arrived: threading.Event,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    taken = ProgramMoves._taken
    async with world(nodes=nodes) as w:
        program, at = await launched(w, "recites")
        url = f"{w.url.replace('http', 'ws')}/v1/programs/{program}/attach"
        async with connect(url, proxy=None) as socket:

            async def after_a_word(moves: ProgramMoves, record: bytes, targets: Any) -> str | None:
                for turn in range(1, NUM_TURNS):
                    await ask(socket, turn)
                assert await asyncio.to_thread(arrived.wait, 10.0)
                return await taken(moves, record, targets) if is_taken else "no"

            monkeypatch.setattr(ProgramMoves, "_taken", after_a_word)
            await ask(socket, 0)
            await socket.recv()
            assert (await drain(w, at))["num_programs_moved"] == is_taken
            await check_recited(socket)


async def test_who_comes_back_behind_a_message_hears_none_twice(nodes: list[RealNode]) -> None:
    async with world(nodes=nodes) as w:
        program, at = await launched(w)
        await say(w, program, "question 0")
        path = f"/v1/programs/{program}/events"
        async with w.http.stream("GET", path) as answer:
            await anext(frames(answer.aiter_lines()))
        # a node takes 1.0 for a number
        url = f"{w.url.replace('http', 'ws')}/v1/programs/{program}/attach?after=1.0"
        told = [w.http.stream("GET", f"{path}?after=1")]
        told.append(w.http.stream("GET", path, headers={"last-event-id": "1"}))
        async with connect(url, proxy=None) as socket, told[0] as one, told[1] as other:
            assert (await drain(w, at))["num_programs_moved"] == 1
            for turn in range(1, NUM_TURNS):
                await say(w, program, f"question {turn}")
            numbers = [json.loads(frame).get("sequence") async for frame in socket]
            assert numbers == [2, 3, 4, None]
            for answer in (one, other):
                found = [frame.get("sequence") async for frame in frames(answer.aiter_lines())]
                assert found == [2, 3, 4, None]


@pytest.mark.parametrize("is_launch", [True, False])
async def test_a_stream_of_its_messages_goes_on(nodes: list[RealNode], is_launch: bool) -> None:
    async with world(nodes=nodes) as w:
        body = {"program": "interview", "stream": True}
        program = "" if is_launch else (await launched(w))[0]
        asked = ("POST", "/v1/programs") if is_launch else ("GET", f"/v1/programs/{program}/events")
        async with w.http.stream(*asked, json=body if is_launch else None) as answer:
            assert answer.status_code in (200, 201)
            told = frames(answer.aiter_lines())
            if is_launch:
                program = (await anext(told))["program"]["id"]
            said = []
            for turn in range(NUM_TURNS):
                await say(w, program, f"question {turn}")
                frame = await anext(told)
                assert (frame["type"], frame["sequence"]) == ("message", turn + 1), frame
                said.append(frame["text"])
                if turn == 1:
                    found = await w.http.get(f"/v1/programs/{program}")
                    assert (await drain(w, found.headers["x-quire-node"]))["num_programs_moved"]
            ended = await anext(told)
        assert (ended["type"], ended["program"]["result"]) == ("ended", said)


async def test_it_moves_to_the_node_with_the_least_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def engine(load: int, *, takes_work: bool = True) -> Any:
        return SimpleNamespace(load=load, node=SimpleNamespace(takes_work_for=lambda _: takes_work))

    async def lost(path: str, source: Any, target: Any) -> int:
        asked.append(target)
        raise EngineLost("it is gone")

    asked: list[Any] = []
    source, idle = engine(0), engine(1)
    moves = ProgramMoves.__new__(ProgramMoves)
    moves._fleet = SimpleNamespace(  # type: ignore[assignment]
        engines=[source, engine(5), idle, engine(2), engine(0, takes_work=False)]
    )
    moves._locator = SimpleNamespace(forget=lambda lookups: None)  # type: ignore[assignment]
    monkeypatch.setattr(moves, "_send_pages", lost)
    assert await moves._move(["prog-1"], source, ProgramsLeft())
    assert asked == [idle]


async def test_another_router_finds_a_program_that_has_moved(nodes: list[RealNode]) -> None:
    async with world(nodes=nodes) as w, world(nodes=nodes) as other:
        program, at = await launched(w)
        await say(other, program, "question 0")  # it remembers the node
        assert (await drain(w, at))["num_programs_moved"] == 1
        await say(other, program, "question 1")
        found = await other.http.get(f"/v1/programs/{program}")
        assert found.headers["x-quire-node"] != at
        assert (await drain(w, found.headers["x-quire-node"]))["num_programs_moved"] == 1
        url = f"{other.url.replace('http', 'ws')}/v1/programs/{program}/attach"
        async with connect(url, proxy=None) as socket:
            assert json.loads(await socket.recv())["sequence"] == 1
        for turn in range(2, NUM_TURNS):
            await say(other, program, f"question {turn}")
        async with other.http.stream("GET", f"/v1/programs/{program}/events") as answer:
            told = [frame async for frame in frames(answer.aiter_lines())]
        assert [one["type"] for one in told] == ["message"] * NUM_TURNS + ["ended"]
        gone = await other.http.get(f"/v1/programs/{program}/nothing")
        assert gone.status_code == 404, "its node is asked again, and says so again"


async def test_what_cannot_move_stays_and_says_why(nodes: list[RealNode]) -> None:
    async with world(nodes=nodes) as w:
        program, at = await launched(w, "stays")
        left = await drain(w, at)
        assert left["num_programs_moved"] == 0
        assert "restartable=True" in left["programs_that_stay"][program]
        await say(w, program, "end")


async def test_without_another_node_or_key_it_goes_on_where_it_is(nodes: list[RealNode]) -> None:
    for given, options in ((nodes[:1], {}), (nodes, {"cluster_key": None})):
        async with world(nodes=given, **options) as w:
            program, at = await launched(w)
            await say(w, program, "question 0")
            assert (await drain(w, at))["num_programs_moved"] == 0
            for turn in range(1, NUM_TURNS):
                await say(w, program, f"question {turn}")
            async with w.http.stream("GET", f"/v1/programs/{program}/events") as answer:
                told = [frame async for frame in frames(answer.aiter_lines())]
            assert told[-1]["type"] == "ended"
            assert len(told[-1]["program"]["result"]) == NUM_TURNS


async def test_where_no_node_takes_it_it_begins_again(
    nodes: list[RealNode], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise QuotaExceeded("it has too many programs")

    async with world(nodes=nodes) as w:
        program, at = await launched(w)
        await say(w, program, "question 0")
        for node in nodes:
            monkeypatch.setattr(node.node.for_routers, "take", refuse)
        left = await drain(w, at)
        assert left["programs_that_stay"] == {program: "it has too many programs"}
        for turn in range(1, NUM_TURNS):
            await say(w, program, f"question {turn}")
        async with w.http.stream("GET", f"/v1/programs/{program}/events") as answer:
            told = [frame async for frame in frames(answer.aiter_lines())]
        assert [one["type"] for one in told] == ["message"] * NUM_TURNS + ["ended"]
        assert told[-1]["program"]["result"] == [one["text"] for one in told[:-1]]


async def read_through(w: World, text: str) -> dict[str, int]:
    """The figures of a program that reads ``text`` and moves, at its last node."""
    program, at = await launched(w, "reads", text)
    async with w.http.stream("GET", f"/v1/programs/{program}/events") as answer:
        told = frames(answer.aiter_lines())
        for word in (" first", " second"):
            await say(w, program, word)
            assert text in (await anext(told))["text"]
        left = await drain(w, at)
        await say(w, program, "end")
        assert (await anext(told))["program"]["state"] == "finished"
    record = (await w.http.get(f"/v1/programs/{program}")).json()
    assert record["result"][:2] == [NUM_READ + 37, NUM_READ + 38]
    return {**record["usage"], **left}


NUM_READ = 160
"""Tokens that it reads and generates first, as pages of 16 hold them."""


async def test_its_pages_go_ahead_and_are_not_computed_again(nodes: list[RealNode]) -> None:
    async with world(nodes=nodes) as w:
        used = await read_through(w, "a text that is read before a move. ".ljust(120))
    assert used["num_programs_moved"] == 1
    assert used["num_program_tokens_sent"] == NUM_READ + 2 * 16, "what both have goes once"
    # its first generation ends in a page that is computed up to there, and found whole then; where
    # the messages of the others end, which depends on the machine, decides what is found of those
    assert NUM_READ <= used["num_cached_tokens"] <= (NUM_READ - 16) + 2 * 17
    assert used["num_prefilled_tokens"] < 60, "without its pages it computes all 223"


async def test_where_its_pages_cannot_go_it_moves_without_them(
    nodes: list[RealNode], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuses(*_: Any, **__: Any) -> Any:
        raise CapacityError("no room")

    monkeypatch.setattr(NodeEngine, "prep_recv", refuses)
    async with world(nodes=nodes) as w:
        used = await read_through(w, "another text that is read before. ".ljust(120))
    assert (used["num_programs_moved"], used["num_program_tokens_sent"]) == (1, 0)
    assert used["num_cached_tokens"] < 16
    assert used["num_prefilled_tokens"] > 200


async def children_of(w: World, program: str) -> list[str]:
    """Both, once it has launched them."""
    while True:
        listed = (await w.http.get("/v1/programs")).json()["data"]
        children = [one["id"] for one in listed if one["parent"] == program]
        if len(children) == 2:
            return children


async def test_children_move_with_their_parent_and_are_reached(nodes: list[RealNode]) -> None:
    async with world(nodes=nodes) as w:
        program, at = await launched(w, "leads", "recites", "recites")
        children = await children_of(w, program)
        url = f"{w.url.replace('http', 'ws')}/v1/programs/{children[0]}/attach"
        async with (
            w.http.stream("GET", f"/v1/programs/{program}/events") as answer,
            connect(url, proxy=None) as socket,
        ):
            told = frames(answer.aiter_lines())
            for turn in range(NUM_TURNS):
                await say(w, program, f"word {turn}")
                assert (await anext(told))["text"] == f"word {turn} word {turn}"
                if turn < 2:
                    left = await drain(w, at)
                    assert (left["num_programs_moved"], left["programs_that_stay"]) == (3, {})
                    for one in (program, *children):
                        found = await w.http.get(f"/v1/programs/{one}")
                        assert found.headers["x-quire-node"] != at
                    at = found.headers["x-quire-node"]
            words = [f"word {turn}" for turn in range(NUM_TURNS)]
            assert (await anext(told))["program"]["result"] == [words, words]
            assert [json.loads(frame).get("text") async for frame in socket] == [*words, None]


async def test_a_child_that_has_to_stay_is_named(nodes: list[RealNode]) -> None:
    async with world(nodes=nodes) as w:
        program, at = await launched(w, "leads", "stays", "recites")
        children = await children_of(w, program)
        left = await drain(w, at)
        assert left["num_programs_moved"] == 0
        why = left["programs_that_stay"]
        assert f"its child 'stays' ({children[0]}) has to stay: it is not" in why[program]
        assert why[children[0]] == why[children[1]] == f"it moves with {program}, which stays"
        await w.http.delete(f"/v1/programs/{program}")


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("windowed_attention", ("a question of some length", "400", "9")),
        ("beam_search", ("say", "3", "60")),
        ("speculative_decoding", ("say", "400", "3")),
    ],
)
async def test_a_program_of_the_library_gives_the_answer_that_it_would_have_given(
    nodes: list[RealNode], name: str, args: tuple[str, ...]
) -> None:
    """It is sent to and fro twice. On a fast machine it may end before it is: then another is."""
    async with world(nodes=nodes) as w:

        async def ended(program: str) -> Any:
            async with w.http.stream("GET", f"/v1/programs/{program}/events") as answer:
                told = [frame async for frame in frames(answer.aiter_lines())]
            assert told[-1]["program"]["state"] == "finished", told[-1]
            return told[-1]["program"]["result"]

        undisturbed, _ = await launched(w, name, *args)
        expected = await ended(undisturbed)
        num_moved = 0
        for _ in range(NUM_TRIES):
            program, at = await launched(w, name, *args)
            for _ in range(2):
                left = await drain(w, at)
                stays = left["programs_that_stay"].values()
                assert all(reason.endswith("it ends here") for reason in stays), stays
                num_moved += left["num_programs_moved"]
                found = await w.http.get(f"/v1/programs/{program}")
                at = found.headers["x-quire-node"]
            assert await ended(program) == expected
            if num_moved:
                return
        pytest.fail(f"none of {NUM_TRIES} programs has moved")


async def test_a_node_whose_answer_is_lost_has_the_program_and_no_other_one(
    nodes: list[RealNode], monkeypatch: pytest.MonkeyPatch
) -> None:
    call, num_lost = ProgramMoves._call, 0

    async def loses(
        moves: ProgramMoves, node: Any, method: str, path: str, body: bytes = b""
    ) -> tuple[int, bytes]:
        nonlocal num_lost
        answer = await call(moves, node, method, path, body)
        if path == "/v1/microserving/programs" and not num_lost:
            num_lost += 1
            raise EngineLost(f"node {node.name} has closed the connection")
        return answer

    monkeypatch.setattr(ProgramMoves, "_call", loses)
    monkeypatch.setattr(program_moves, "_RETRY_S", 0.0)
    async with world(nodes=nodes) as w:
        program, at = await launched(w)
        await say(w, program, "question 0")
        left = await drain(w, at)
        assert (left["num_programs_moved"], left["programs_that_stay"]) == (1, {})
        assert num_lost == 1
        having = []
        for node in nodes:
            told = await w.http.get("/v1/programs", headers={"x-quire-node": node.name})
            having += [node.name for one in told.json()["data"] if one["id"] == program]
        assert len(having) == 1
        assert having != [at]
        for turn in range(1, NUM_TURNS):
            await say(w, program, f"question {turn}")


@pytest.fixture
def moves(monkeypatch: pytest.MonkeyPatch) -> ProgramMoves:
    monkeypatch.setattr(program_moves, "_RETRY_S", 0.0)
    monkeypatch.setattr(program_moves, "_AGAIN_S", 0.01)
    return ProgramMoves.__new__(ProgramMoves)


TARGETS: Any = [SimpleNamespace(name=name, node=SimpleNamespace(name=name)) for name in "ab"]


async def test_where_a_node_may_have_it_no_other_one_is_asked(
    moves: ProgramMoves, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def silent(node: Any, *_: Any) -> tuple[int, bytes]:
        asked.add(node.name)
        raise TimeoutError

    asked: set[str] = set()
    monkeypatch.setattr(moves, "_call", silent)
    with pytest.raises(EngineLost, match="node a may have taken it"):
        await moves._taken(b"", TARGETS)
    assert asked == {"a"}


@pytest.mark.parametrize("is_first", [True, False])
async def test_where_a_node_is_gone_the_next_one_is_asked(
    is_first: bool, moves: ProgramMoves, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def gone(node: Any, *_: Any) -> tuple[int, bytes]:
        asked.append(node.name)
        if node.name == "b":
            return 201, b""
        if not is_first and len(asked) == 1:
            raise EngineLost("it has closed the connection")
        raise NotReached("it cannot be reached") from ConnectionRefusedError()

    asked: list[str] = []
    monkeypatch.setattr(moves, "_call", gone)
    assert await moves._taken(b"", TARGETS) is None
    assert asked == (["a", "b"] if is_first else ["a", "a", "b"])
