"""Agents whose tools run while the model writes, and agents that write to one another."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from library_run import run
from programs_node import node_saying

from quire.core.errors import ProgramFailed
from quire.programs.chat import AnswerParser, chat_template, parse_answer
from quire.programs.library.agents import swarm
from quire.programs.library.agents.async_tools import EarlyCalls, converse, streamed_turn
from quire.programs.library.agents.codeact import MAX_PRINTED_CHARS, code_in, shortened
from quire.programs.library.agents.swarm import AgentMessage, Desk
from quire.programs.sdk import Context, Conversation, Toolbox


def call_text(name: str, **arguments: object) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


# -- asynchronous tools ----------------------------------------------------------------------------


def started_calls(text: str, cuts: list[int]) -> list[tuple[str, str, int]]:
    """Name, arguments and how much of ``text`` had been read when each call started."""
    started: list[tuple[str, str, int]] = []
    num_read = 0
    calls = EarlyCalls(lambda call: started.append((call.name, call.arguments, num_read)))
    parser = AnswerParser(tools=True)
    for begin, end in zip([0, *cuts], [*cuts, len(text)], strict=True):
        num_read = end
        calls.feed(parser.feed(text[begin:end]))
    calls.feed(parser.finish())
    calls.finish()
    return started


TEXTS = st.lists(
    st.sampled_from(
        [
            call_text("f", a=1),
            call_text("g", text='}"{ \\ é', deep={"x": [1, {}]}),
            call_text("h"),
            "Then I say {this}.",
            "<tool_call>no call</tool_call>",
            '<tool_call>{"name": "bare"}</tool_call>',
        ]
    ),
    max_size=5,
).map(" ".join)


@given(TEXTS, st.data())
def test_calls_start_in_order_however_the_text_is_cut(text: str, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=8)))
    expected = [(call.name, call.arguments) for call in parse_answer(text).calls]
    assert [found[:2] for found in started_calls(text, cuts)] == expected


def test_a_call_starts_with_the_last_brace_of_its_arguments() -> None:
    text = call_text("f", a={"b": 1}) + " and " + call_text("g", c=2)
    first, second = started_calls(text, list(range(1, len(text))))
    assert text[: first[2]].endswith('{"b": 1}}')
    assert not text[: first[2]].endswith("</tool_call>")
    assert text[: second[2]].endswith('{"c": 2}')


def test_a_call_that_is_cut_off_starts_at_the_end() -> None:
    ((name, arguments, at),) = started_calls('<tool_call>{"name": "f", "arguments": {"a": ', [30])
    assert (name, arguments, at) == ("f", '{"a": ', 44)


async def test_a_tool_runs_while_the_model_writes_on() -> None:
    """The second call is written only after the first tool has been seen running."""
    long_end = " " + "I will tell you soon. " * 20
    text = call_text("first") + long_end + call_text("second")
    generating: list[bool] = []

    async def main(api: Any) -> list[Any]:
        ctx = Context(api)

        async def first() -> str:
            generating.append(ctx.generating)
            return "one"

        chat = Conversation(ctx, tools=[first, second]).say("Go.")
        turn = await streamed_turn(chat, max_tokens=900)
        return [[run.call.name, run.result, run.at_chars] for run in turn.runs] + [len(turn.text)]

    async def second() -> str:
        """The other tool."""
        return "two"

    node, _ = node_saying(lambda _: text + "<|end|>", page_size=16)
    async with node:
        one, two, num_chars = await node.run(main)
    assert generating == [True]
    assert one[:2] == ["first", "one"]
    assert two[:2] == ["second", "two"]
    assert one[2] < num_chars // 2 < two[2] <= num_chars == len(text)


async def test_results_come_in_the_order_of_the_calls_whoever_is_done_first() -> None:
    second_done = asyncio.Event()
    order: list[str] = []

    async def slow(n: int) -> str:
        """Waits for the other."""
        await second_done.wait()
        order.append("slow")
        return f"slow {n}"

    async def fast(n: int) -> str:
        """Is done at once."""
        order.append("fast")
        second_done.set()
        return f"fast {n}"

    seen: list[str] = []

    def answer(prompt: str) -> str:
        seen.append(prompt)
        if "<|tool|>" in prompt:
            return "Both are there.<|end|>"
        return call_text("slow", n=1) + "\n" + call_text("fast", n=2) + "<|end|>"

    async def main(api: Any) -> str:
        async with Context(api) as ctx:
            return (await converse(ctx, "Go.", Toolbox([slow, fast])))[0]

    node, _ = node_saying(answer, page_size=16)
    async with node:
        assert await node.run(main) == "Both are there."
    assert order == ["fast", "slow"]
    assert "<|tool|>slow 1<|end|><|tool|>fast 2<|end|><|assistant|>" in seen[1]


async def test_the_conversation_is_that_of_calling_afterwards() -> None:
    """The control: turns that are parsed when they have ended, tools one after another."""

    async def double(n: int) -> str:
        """Twice the number."""
        return str(2 * n)

    def answer(prompt: str) -> str:
        if prompt.count("<|tool|>") < 3:
            n = prompt.count("<|tool|>") + 1
            return call_text("double", n=n) + (call_text("double", n=9) if n == 1 else "")
        return "Done.<|end|>"

    async def afterwards(api: Any) -> list[int]:
        tools, messages = Toolbox([double]), [{"role": "user", "content": "Go."}]
        template = chat_template(api.available_models()[0].served)
        async with Context(api) as ctx:
            while True:
                ctx.truncate(0)
                ctx.fill(template.render(messages, tools=tools.schemas()))
                said = parse_answer((await ctx.generate(max_tokens=256)).text)
                if not said.calls:
                    return list(ctx.tokens)
                spoken = [
                    {"function": {"name": c.name, "arguments": json.loads(c.arguments)}}
                    for c in said.calls
                ]
                messages.append(
                    {"role": "assistant", "content": said.content, "tool_calls": spoken}  # type: ignore[dict-item]
                )
                messages += [
                    {"role": "tool", "content": await tools.call(call)} for call in said.calls
                ]

    async def beside(api: Any) -> list[int]:
        async with Context(api) as ctx:
            await converse(ctx, "Go.", Toolbox([double]))
            return list(ctx.tokens)

    node, _ = node_saying(answer, page_size=16)
    async with node:
        assert await node.run(beside) == await node.run(afterwards)


async def test_the_shipped_program_answers_and_says_when_its_tools_started() -> None:
    def answer(prompt: str) -> str:
        if "<|tool|>" in prompt:
            return "Noon there.<|end|>"
        return call_text("get_time", city="Lima") + call_text("fly", to="Rome") + "<|end|>"

    result, _, _ = await run("async_tools", "Time?", "0", answer=answer, page_size=16)
    assert result["answer"] == "Noon there."
    time, unknown = result["calls"]
    assert time["result"] == '{"time": "08:05"}'
    assert unknown["result"].startswith("error: no tool 'fly'")


async def test_a_failed_generation_ends_its_tools() -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    async def forever() -> str:
        """Never done."""
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return ""

    async def main(api: Any) -> None:
        chat = Conversation(Context(api), tools=[forever]).say("Go.")
        task = asyncio.ensure_future(streamed_turn(chat, max_tokens=200))
        await begun.wait()
        task.cancel()
        await asyncio.wait([task])
        await ended.wait()

    node, _ = node_saying(lambda _: call_text("forever") + "x" * 400, page_size=16)
    async with node:
        await node.run(main)


# -- swarm -----------------------------------------------------------------------------------------


def colleagues(prompt: str) -> str:
    """A model with the skills of the agents, each recognised by its prompt."""
    question = prompt.rpartition("<|user|>")[2].partition("<|end|>")[0]
    if question.startswith("Classify"):
        return f"Answer: {'chat' if 'Hello' in question else 'search'}<|end|>"
    if "Tools:" in prompt:
        if prompt.endswith("<|assistant|>"):
            return "Thought: Look.\nAction: lookup(Kabo, age)\nObservation:"
        if prompt.endswith("Observation: 31\n"):
            return "Action: calc(31*3)\nObservation:"
        return f"Answer: {prompt.split('Observation: ')[-1].strip()}<|end|>"
    if question == "Context: Kabo: age 31.\nQuestion: What is the age of Kabo?":
        return "Answer: 31<|end|>"
    sums = {"What is 31 + 31?": "Answer: 62<|end|>", "What is 62 + 31?": "Answer: 93<|end|>"}
    return sums.get(question, "Hello to you.<|end|>")


async def test_agents_hand_a_request_on_until_one_can_answer() -> None:
    result, messages, _ = await run(
        "swarm", "What is 3 times the age of Kabo?", "Kabo: age 31.", answer=colleagues
    )
    assert result["answer"] == "93"
    assert [(letter["sender"], letter["to"], letter["text"]) for letter in result["letters"]] == [
        ("user", "triage", "What is 3 times the age of Kabo?"),
        ("triage", "planner", "What is 3 times the age of Kabo?"),
        ("planner", "librarian", "What is the age of Kabo?"),
        ("librarian", "planner", "31"),
        ("planner", "mathematician", "31*3"),
        ("mathematician", "planner", "93"),
        ("planner", "user", "93"),
    ]
    assert messages[2] == "planner -> librarian: What is the age of Kabo?"
    assert len(messages) == 7


async def test_talk_goes_to_the_host_and_is_plain_decoding_there() -> None:
    result, messages, _ = await run("swarm", "Hello", answer=colleagues)
    assert result["answer"] == "Hello to you."
    assert [message.partition(":")[0] for message in messages] == [
        "user -> triage",
        "triage -> host",
        "host -> user",
    ]


async def test_agents_that_only_write_to_each_other_are_stopped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def ping(desk: Desk, letter: AgentMessage) -> None:
        await desk.write("host" if desk.name == "triage" else "triage", letter.text)

    monkeypatch.setattr(swarm, "ROLES", {"triage": ping, "host": ping})
    monkeypatch.setattr(swarm, "MAX_LETTERS", 8)
    with pytest.raises(ProgramFailed, match="8 letters without an answer"):
        await run("swarm", "Hello", answer=colleagues)


async def test_an_agent_that_fails_fails_the_swarm_with_its_own_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def stumble(desk: Desk, letter: AgentMessage) -> None:
        raise KeyError(f"{desk.name} has no {letter.text}")

    monkeypatch.setattr(swarm, "ROLES", {"triage": stumble, "host": stumble})
    with pytest.raises(ProgramFailed, match="triage has no Hello"):
        await run("swarm", "Hello", answer=colleagues)


async def test_a_role_that_nobody_plays_is_refused() -> None:
    with pytest.raises(ProgramFailed, match="no role 'butcher': use one of triage, host"):
        await run("swarm", "What?", "", "butcher", answer=colleagues)


def test_every_role_says_what_it_does() -> None:
    assert list(swarm.ROLES) == ["triage", "host", "planner", "librarian", "mathematician"]
    assert all(role.__doc__ for role in swarm.ROLES.values())


# -- CodeAct: its text; the code itself runs in tests/node/test_node_codeact.py --------------------


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("```python\nprint(1)\n```\n", "print(1)\n"),
        ("```py\na\n```\nand\n```\nb\nc\n```\n", "b\nc\n"),
        ("print(1)", ""),
        ("```python\nprint(1)\n", ""),
    ],
)
def test_the_last_block_is_the_code(text: str, code: str) -> None:
    assert code_in(text) == code


def test_long_output_is_cut_with_a_note() -> None:
    assert shortened("x" * MAX_PRINTED_CHARS) == "x" * MAX_PRINTED_CHARS
    assert shortened("x" * (MAX_PRINTED_CHARS + 7)).endswith("x... (7 characters more)")
