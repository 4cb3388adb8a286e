"""Conversations with tools: the same program with models that write their calls in other forms."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from programs_node import level, node_saying
from programs_templates import LLAMA, MISTRAL, MISTRAL_TOKENS

from quire.core.errors import InvalidArgument, ProgramCancelled
from quire.programs.api import Api, connect_api
from quire.programs.chat import Answer, Piece, TextPiece
from quire.programs.library.agents.async_tools import converse
from quire.programs.sdk import Context, Conversation, Toolbox, choice
from quire.testing import FakeTokenizer, LocalNode, scripted_node
from quire.testing.tokenizer import CHAT_TEMPLATE


def double(n: int) -> int:
    """Twice a number."""
    return 2 * n


@dataclass(frozen=True)
class Form:
    """A model's template, and two calls of ``double`` as that model writes them."""

    template: str
    two_calls: str
    result: str
    """How the template shows that the second call gave 14."""
    tokenizer: FakeTokenizer | None = None


HERMES_CALL = '<tool_call>{"name": "double", "arguments": {"n": %d}}</tool_call>'
FORMS = {
    "hermes": Form(CHAT_TEMPLATE, HERMES_CALL % 4 + HERMES_CALL % 7, "<|tool|>14<|end|>"),
    "llama": Form(
        LLAMA,
        '{"name": "double", "parameters": {"n": 4}}; {"name": "double", "parameters": {"n": 7}}',
        '{"name": "double", "parameters": {"n": 7}}<|end|>'
        "<|start_header_id|>ipython<|end_header_id|>\n\n14<|end|>",
    ),
    "mistral": Form(
        MISTRAL,
        '[TOOL_CALLS] [{"name": "double", "arguments": {"n": 4}}, '
        '{"name": "double", "arguments": {"n": 7}}]',
        '[TOOL_RESULTS] {"content": 14, "call_id": ',
        FakeTokenizer(MISTRAL_TOKENS),
    ),
    "mistral, newer": Form(
        MISTRAL,
        '[TOOL_CALLS]double[ARGS]{"n": 4}[TOOL_CALLS]double[ARGS]{"n": 7}',
        '[TOOL_RESULTS] {"content": 14, "call_id": ',
        FakeTokenizer(MISTRAL_TOKENS),
    ),
}


def node_of_form(form: Form, prompts: list[str]) -> LocalNode:
    """A model that calls ``double`` twice, then answers."""

    def answer(prompt: str) -> str:
        prompts.append(prompt)
        return ("It is 14." if form.result in prompt else form.two_calls) + "<|end|>"

    return scripted_node(answer, tokenizer=form.tokenizer, chat_template=form.template)


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
async def test_calls_are_read_and_results_told_in_the_models_form(form: Form) -> None:
    prompts: list[str] = []

    async def main(api: Api) -> Any:
        async with Context(api) as ctx:
            chat = Conversation(ctx, tools=[double]).say("Twice 4 and 7?")
            called = await chat.answer(max_tokens=200)
            results = await chat.tools.call_all(called.calls)
            chat.add_results(results)
            answer = await chat.answer(max_tokens=200)
            calls = [[call.name, json.loads(call.arguments)] for call in called.calls]
            ids = [call.id for call in called.calls]
            return called.content, calls, results, answer.content, chat.messages[-1], ids

    async with node_of_form(form, prompts) as node:
        content, calls, results, said, last, ids = await node.run(main)
    assert content == ""
    assert calls == [["double", {"n": 4}], ["double", {"n": 7}]]
    assert ids == ["call00001", "call00002"], "a program that begins again says the same"
    assert results == ["8", "14"]
    assert said == "It is 14."
    assert last == {"role": "assistant", "content": "It is 14."}
    assert len(prompts) == 2
    assert prompts[1].index("8") < prompts[1].index(form.result)


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
async def test_the_shipped_agent_works_with_every_form(form: Form) -> None:
    async def main(api: Api) -> Any:
        async with Context(api) as ctx:
            answer, turns = await converse(ctx, "Twice 4 and 7?", Toolbox([double]))
            return answer, [run.result for turn in turns for run in turn.runs], turns[0].text

    async with node_of_form(form, []) as node:
        answer, results, written = await node.run(main)
    assert (answer, results) == ("It is 14.", ["8", "14"])
    assert written == form.two_calls


@asynccontextmanager
async def api_saying(text: str) -> AsyncIterator[Api]:
    """Of a program on a node whose model says the same to everything."""
    node, _ = node_saying(lambda _: text)
    async with node:
        api = connect_api(node.connect())
        yield api
        api.close()
        assert (await level(node))["held"] == 0


async def test_pieces_come_as_they_are_written() -> None:
    async with api_saying("I look. " + HERMES_CALL % 4 + "<|end|>") as api, Context(api) as ctx:
        chat = Conversation(ctx, tools=[double]).say("Twice 4?")
        answering = chat.answer(max_tokens=200)
        pieces: list[Piece] = []
        seen: list[str] = []
        async for piece in answering:
            pieces.append(piece)
            seen.append(answering.text)
        assert pieces[0] == TextPiece(seen[0])
        assert len(seen[0]) < len(seen[-1])
        assert answering.text == "I look. " + HERMES_CALL % 4
        whole = await answering
        assert whole.content == "I look."
        assert (await answering.generation).finish_reason == "stop"
        assert [piece async for piece in answering] == [], "each piece is told once"


async def test_reasoning_is_no_content() -> None:
    async with api_saying("<think>\nHm.\n</think>\n\nYes.<|end|>") as api, Context(api) as ctx:
        chat = Conversation(ctx).say("Well?")
        assert await chat.answer() == Answer("Yes.", "Hm.", ())
        assert chat.messages[-1]["reasoning_content"] == "Hm."


async def test_without_tools_calls_are_text() -> None:
    async with api_saying(HERMES_CALL % 4 + "<|end|>") as api, Context(api) as ctx:
        answer = await Conversation(ctx).say("Well?").answer()
        assert (answer.content, answer.calls) == (HERMES_CALL % 4, ())


async def test_what_a_grammar_writes_is_read_in_hermes_form() -> None:
    """An object with the name of a tool would be a call of a Llama."""
    text = '{"name": "double", "parameters": {}}'
    async with scripted_node(lambda _: text, chat_template=LLAMA) as node:
        api = connect_api(node.connect())
        async with Context(api) as ctx:
            chat = Conversation(ctx, tools=[double]).say("Well?")
            answer = await chat.answer(grammar=choice([text]))
            assert (answer.content, answer.calls) == (text, ())
        api.close()


async def test_what_was_computed_stays_and_the_text_is_that_of_a_fresh_prompt() -> None:
    async with api_saying("Yes, and gladly.<|end|>") as api, Context(api) as ctx:
        ctx.fill("before ")
        chat = Conversation(ctx, [{"role": "system", "content": "Be kind."}]).say("Well?")
        await chat.answer()
        chat.say("And now?")
        again = chat.answer()
        assert ctx.text.startswith(
            "before <|system|>Be kind.<|end|><|user|>Well?<|end|>"
            "<|assistant|>Yes, and gladly.<|end|><|user|>And now?<|end|><|assistant|>"
        )
        assert (await again.generation).num_cached_tokens == 0, "nothing was looked for"
        await again


async def test_messages_may_be_changed_between_turns() -> None:
    async with api_saying("Yes.<|end|>") as api, Context(api) as ctx:
        chat = Conversation(ctx).say("One?")
        await chat.answer()
        chat.messages[0]["content"] = "Two?"
        del chat.messages[1:]
        await chat.answer()
        assert "One?" not in ctx.text
        assert "Two?" in ctx.text


async def test_a_turn_that_was_cancelled_is_none() -> None:
    async with api_saying("x" * 400) as api, Context(api) as ctx:
        chat = Conversation(ctx).say("Well?")
        async with chat.answer() as answering:
            async for _ in answering:
                break
        with pytest.raises(ProgramCancelled):
            await answering
        assert chat.messages == [{"role": "user", "content": "Well?"}]
        assert (await chat.answer(max_tokens=3)).content == "xxx"


async def test_what_cannot_be_is_refused() -> None:
    async with api_saying(HERMES_CALL % 4 + "<|end|>") as api, Context(api) as ctx:
        chat = Conversation(ctx, tools=[double])
        with pytest.raises(InvalidArgument, match="at least one message"):
            chat.answer()
        with pytest.raises(InvalidArgument, match="1 results for 0 calls"):
            chat.add_results(["8"])
        answering = chat.say("Twice 4?").answer()
        with pytest.raises(InvalidArgument, match="is generating"):
            chat.answer()
        await answering
        with pytest.raises(InvalidArgument, match="has called double: give the results"):
            chat.answer()
        with pytest.raises(InvalidArgument, match="has called double"):
            chat.say("Well?")
        with pytest.raises(InvalidArgument, match="0 results for 1 calls"):
            chat.add_results([])
        with pytest.raises(InvalidArgument, match="two tools are named"):
            Conversation(ctx, tools=[double, double])
        for wrong in ("Hello.", ["Hello."]):
            with pytest.raises(InvalidArgument, match="is not a message"):
                Conversation(ctx, wrong)  # type: ignore[arg-type]
            with pytest.raises(InvalidArgument, match="is not a message"):
                ctx.fill_chat(wrong)  # type: ignore[arg-type]
