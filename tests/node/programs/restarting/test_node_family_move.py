"""Programs move to another node with their children, or all of them stay."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from fake_node import TENANT, StartNode

from quire.core.errors import InvalidArgument, MailboxClosed, QuireError, QuotaExceeded
from quire.core.quotas import Quotas
from quire.node import Node, ProgramHandle
from quire.node.programs.children import MovedChild
from quire.node.programs.restarting.family_move import (
    check_family,
    family_leaves,
    family_stays,
    hand_over_family,
    packed_family,
    running_family,
)
from quire.node.programs.restarting.handing_over import EndedChild, packed, unpacked
from quire.node.programs.restarting.recorded_answers import (
    HandedAnswer,
    handed_answers,
    taken_answers,
    why_they_stay,
)
from quire.programs.library import LIBRARY
from quire.programs.runtime.replay_log import RecordedQuestion, plain
from quire.programs.sdk import Context, inferlet
from quire.programs.services.network import HttpReply


@inferlet("pupil", restartable=True)
async def pupil(api, name):  # type: ignore[no-untyped-def]
    """Answers each question, and returns all answers when it is told to."""
    context = Context(api).fill(f"pupil {name}: ")
    answers = []
    while (question := await api.receive()) != "thanks":
        context.fill(question)
        answers.append(await context.generate_until(max_tokens=5))
        await api.send(answers[-1])
    return answers


@inferlet("brief", restartable=True)
async def brief(api, word):  # type: ignore[no-untyped-def]
    """Says its word twice and ends."""
    await api.send(word)
    await api.send(word)
    return word


@inferlet("teacher", restartable=True)
async def teacher(api, second="pupil"):  # type: ignore[no-untyped-def]
    """Asks two pupils, when it is told to."""
    pupils = [await api.launch("pupil", ["one"]), await api.launch(second, ["two"])]
    short = await api.launch("brief", ["word"])
    said = [await short.receive()]
    for turn in range(4):
        await api.receive()
        for child in pupils:
            await child.send(f"question {turn}")
        said += [await child.receive() for child in pupils]
        await api.send(said[-1])
    late = await api.launch("pupil", ["late"])
    for child in (*pupils, late):
        await child.send("thanks")
    said += [await child.join() for child in (*pupils, late, short)]
    return [*said, [text async for text in short.messages()]]


@inferlet("boundless", restartable=True)
async def boundless(api, kind):  # type: ignore[no-untyped-def]
    """Ends with what JSON can express and no message between nodes."""
    if kind == "log":
        api.log("info", "so many", number=10**30)
    if kind == "message":
        await api.send("half \ud800")
    return 10**30 if kind == "result" else kind


@inferlet("patient", restartable=True)
async def patient(api, kind):  # type: ignore[no-untyped-def]
    """Launches a child, and never asks for anything of it."""
    await api.launch("boundless", [kind])
    while (text := await api.receive()) != "end":
        await api.send(text)
    return "ended"


@inferlet("restless")
async def restless(api, name):  # type: ignore[no-untyped-def]
    """Cannot be restarted."""
    while True:
        await api.send(await api.receive())


@pytest.fixture(autouse=True)
def shipped(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("boundless", "brief", "patient", "pupil", "restless", "teacher"):
        monkeypatch.setitem(LIBRARY._modules, name, __name__)


async def ask(program: ProgramHandle, turn: int) -> str:
    await program.send("go on")
    reader = program.attach(turn)
    try:
        return (await anext(reader)).text
    finally:
        reader.close()


async def asked(program: ProgramHandle, text: str, after: int, *, last: bool = False) -> Any:
    """Send ``text``; return the message that answers it, or the result behind the ``last``."""
    await program.send(text)
    if last:
        return await program.result()
    reader = program.attach(after)
    try:
        return (await anext(reader)).text
    finally:
        reader.close()


async def moved(program: ProgramHandle, there: Node) -> ProgramHandle:
    handed = unpacked(packed(await hand_over_family(program)))
    codes = {one.id: LIBRARY[one.name] for one in handed.family()}
    taken = there.for_routers.take(codes, handed, TENANT)
    family_leaves(program)
    return taken


async def test_children_go_with_their_parent(start_node: StartNode) -> None:
    nodes = [await start_node() for _ in range(3)]
    alone = nodes[0].launch(teacher, tenant=TENANT, seed=3)
    program = nodes[0].launch(teacher, tenant=TENANT, seed=3)
    said: dict[str, list[str]] = {"alone": [], "moved": []}
    for turn in range(4):
        said["alone"].append(await ask(alone, turn))
        said["moved"].append(await ask(program, turn))
        if turn < 3:  # to others, and back to the first
            family = {one.id for one in running_family(program)}
            assert len(family) == 3
            before, program = program, await moved(program, nodes[(turn + 1) % 3])
            assert before.has_left
            assert {one.id for one in running_family(program)} == family
    assert said["moved"] == said["alone"]
    result = await program.result()
    assert result == await alone.result()
    assert result[-2:] == ["word", ["word"]], "of the child that had ended, what was not read"
    for node in nodes:
        await node._parts.programs.wait_idle()
        assert {one.state for one in node.programs(TENANT)} <= {"finished"}


async def test_a_child_that_has_to_stay_keeps_all(start_node: StartNode) -> None:
    here = await start_node()
    program = here.launch(teacher, ("restless",), tenant=TENANT)
    first = await ask(program, 0)
    said = r"child 'restless' \(prog-\w+\) has to stay: it is not"
    with pytest.raises(InvalidArgument, match=said):
        await hand_over_family(program)
    assert first == "question 0", "of the second, which repeats"
    assert await ask(program, 1) == "question 1"
    program.terminate()


async def test_a_child_that_begins_to_stay_while_its_parent_stops_keeps_all(
    start_node: StartNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = await start_node()
    program = here.launch(teacher, tenant=TENANT)
    said = [await ask(program, 0)]
    first, *_ = list(running_family(program))[1:]

    async def refuses(**_: Any) -> Any:
        raise InvalidArgument("it has a topic now")

    monkeypatch.setattr(first.life, "hand_over", refuses)
    with pytest.raises(InvalidArgument, match="a topic now"):
        await hand_over_family(program)
    said += [await ask(program, turn) for turn in range(1, 4)]
    assert len(await program.result()) == 14


async def test_where_nobody_takes_them_they_go_on(start_node: StartNode) -> None:
    here, there = await start_node(), await start_node()
    program = here.launch(teacher, tenant=TENANT, quotas=Quotas(max_children=5))
    said = [await ask(program, 0)]
    handed = unpacked(packed(await hand_over_family(program)))
    assert handed.quotas == Quotas(max_children=5)
    table = there._parts.programs
    table._limits = replace(table._limits, max_running=2)
    codes = {one.id: LIBRARY[one.name] for one in handed.family()}
    with pytest.raises(QuotaExceeded, match="3 are to come"):
        there.for_routers.take(codes, handed, TENANT)
    assert there.programs(TENANT) == []
    family_stays(program)
    said += [await ask(program, turn) for turn in range(1, 4)]
    assert len(await program.result()) == 14


@pytest.mark.parametrize("kind", ["log", "message", "result"])
async def test_a_family_that_no_message_can_hold_goes_on_here(
    start_node: StartNode, kind: str
) -> None:
    here = await start_node()
    program = here.launch(patient, (kind,), tenant=TENANT)
    assert await asked(program, "one", 0) == "one"
    (child,) = program.life.children.children.values()
    with suppress(QuireError):
        await child.result()
    with pytest.raises(InvalidArgument, match="cannot be told to another node"):
        await packed_family(program)
    assert await asked(program, "two", 1) == "two"
    assert (await asked(program, "end", 2, last=True), program.record().state) == (
        "ended",
        "finished",
    )


async def test_a_child_alone_stays_with_its_parent(start_node: StartNode) -> None:
    here = await start_node()
    program = here.launch(teacher, tenant=TENANT)
    await ask(program, 0)
    _, child, _ = running_family(program)
    with pytest.raises(InvalidArgument, match=f"launched it \\({program.id}\\)"):
        check_family(child)
    program.terminate()


async def test_an_ended_child_is_asked_as_before() -> None:
    ended = EndedChild(None, QuotaExceeded("too much").record(), ["a", "b"], [{"text": "x"}])
    child = MovedChild("prog-1", "one", ended)
    assert await child.receive() == "a"
    assert child.left() == msgspec.structs.replace(ended, messages=["b"])
    with pytest.raises(QuotaExceeded, match="too much"):
        await child.result()
    assert (await child.receive(), child.logs()) == ("b", [{"text": "x"}])
    with pytest.raises(MailboxClosed):
        await child.receive()
    with pytest.raises(MailboxClosed):
        await child.send("more")


def sent(answers: list[HandedAnswer]) -> list[RecordedQuestion]:
    return taken_answers(msgspec.msgpack.decode(msgspec.msgpack.encode(answers), type=_ANSWERS))


_ANSWERS = list[HandedAnswer]


def test_answers_of_services_and_hosts_travel() -> None:
    reply = HttpReply("text")
    reply.status, reply.headers, reply.body = 200, {"a": "b"}, b"\xff"
    calls = [
        RecordedQuestion(
            ("child.launch", (("args", ["x"]), ("program", pupil))), {"id": "p"}, None, True
        ),
        RecordedQuestion(
            ("encoders.embed", (("texts", ("a", "b")),)), {"values": b"\x00"}, None, True
        ),
        RecordedQuestion(("documents.read", ()), None, QuotaExceeded("no"), True),
        RecordedQuestion(("child.join", (("child", "p"),))),
    ]
    requests = [RecordedQuestion(("GET http://x", None, ()), reply, None, True)]
    assert why_they_stay(calls, requests) is None
    there = [sent(handed_answers(asked)) for asked in (calls, requests)]
    for asked, taken in zip((calls, requests), there, strict=True):
        assert [plain(one.what) for one in taken] == [plain(one.what) for one in asked]
        assert [one.answered for one in taken] == [one.answered for one in asked]
    (heard,) = there[1]
    assert (heard.answer, heard.answer.status, heard.answer.body) == ("text", 200, b"\xff")
    assert there[0][1].answer == {"values": b"\x00"}
    assert isinstance(there[0][2].error, QuotaExceeded)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (
            RecordedQuestion(("topic.subscribe", (("topic", "news"),))),
            r"a topic of this node .*'news'",
        ),
        (RecordedQuestion(("store.put", (("key", "k"), ("value", "v")))), "the store"),
        (RecordedQuestion(("mcp.connect", (("server", "files"),))), "MCP server .*'files'"),
        (
            RecordedQuestion(("encoders.embed", ()), object(), None, True),
            "encoders.embed cannot be told",
        ),
        (RecordedQuestion(("documents.read", ()), None, ValueError("x"), True), "failed in a way"),
    ],
)
def test_what_services_keep_or_cannot_tell_keeps_the_program(
    asked: RecordedQuestion, said: str
) -> None:
    why = why_they_stay([asked], [])
    assert why is not None
    assert re.search(said, why)
