"""A query ends with one clear error when its time or its tokens are used up."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from programs_node import level

from quire.core.errors import DeadlineExceeded, InvalidArgument, NeverWithinQuota, ProgramFailed
from quire.core.quotas import Quotas
from quire.programs.workflow import App, Engine, Node
from quire.programs.workflow.graphs.prompts import MAX_NAMED_PARTS, Prompt, PromptPart
from quire.programs.workflow.query import Query
from quire.testing.local_node import scripted_node


def app() -> App:
    made = App("ask", [Engine("llm")])
    made.update_template(
        [Node("llm", {"q": "text"}, {"a": "text"}, config={"prompt": "{q}"}, name="ask")]
    )
    return made


def waiting(cancelled: asyncio.Event) -> App:
    async def wait(q: str) -> str:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        return q

    made = App("wait", [Engine("tool", config={"functions": {"wait": wait}})])
    made.update_template(
        [Node("tool", {"q": "text"}, {"a": "text"}, config={"function": "wait"}, name="wait")]
    )
    return made


async def test_a_deadline_ends_the_query_and_what_it_runs() -> None:
    cancelled = asyncio.Event()
    asked = Query(waiting(cancelled), {"q": "x"}, deadline_s=0.01)
    asked.prepare()
    async with scripted_node(lambda prompt: "a<|end|>", page_size=4) as local:
        with pytest.raises(
            ProgramFailed, match=r"wait has not ended within its deadline of 0\.01 s"
        ):
            await local.run(asked.program())
    assert cancelled.is_set()
    assert isinstance(asked.error, DeadlineExceeded)


async def test_the_tokens_of_all_models_together_are_bounded() -> None:
    async with scripted_node(lambda prompt: "a b c d e f<|end|>", page_size=4) as local:
        asked = Query(app(), {"q": "x"}, max_generated_tokens=2)
        asked.prepare()
        with pytest.raises(ProgramFailed, match="more than the 2 generated tokens"):
            await local.run(asked.program())
        assert isinstance(asked.error, NeverWithinQuota)
        enough = Query(app(), {"q": "x"}, max_generated_tokens=1000, deadline_s=600.0)
        enough.prepare()
        assert await local.run(enough.program()) == {"a": "a b c d e f"}
        assert (await level(local))["held"] == 0


async def test_a_quota_of_its_tenant_is_not_told_as_a_bound_of_the_query() -> None:
    async with scripted_node(lambda prompt: "a b c d e f<|end|>", page_size=4) as local:
        asked = Query(app(), {"q": "x"}, max_generated_tokens=1000)
        asked.prepare()
        connect = local.connect("ask", quotas=Quotas(max_generated_tokens=2))
        with pytest.raises(ProgramFailed, match="2 tokens were generated, which is its max"):
            await local.run(asked.program(), connect=connect)
    assert isinstance(asked.error, NeverWithinQuota)
    assert "more than the" not in asked.error.message


@pytest.mark.parametrize("bound", [{"deadline_s": 0.0}, {"max_generated_tokens": 0}])
def test_a_bound_of_nothing_is_refused(bound: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"is 0.*: give more than 0"):
        Query(app(), {"q": "x"}, **bound)


def test_a_prompt_has_a_bounded_number_of_parts() -> None:
    """Its parts become nodes of a graph, so a query could bring any number of them."""
    assert Prompt.read("{{" * 100_000, "p").parts == (PromptPart("{" * 100_000),)
    assert Prompt.read("a{{b}}c{q}{r}}}", "p").parts == (
        PromptPart("a{b}c"), PromptPart(name="q"), PromptPart(name="r"), PromptPart("}"),
    )  # fmt: skip
    assert len(Prompt.read("{q}" * MAX_NAMED_PARTS, "p").parts) == MAX_NAMED_PARTS
    with pytest.raises(InvalidArgument, match="the prompt has 257 named parts, 256 are allowed"):
        Prompt.read("{q}" * (MAX_NAMED_PARTS + 1), "p")


@pytest.mark.parametrize("prompt", ["{" + "n" * 10**6, "{n" + "-" * 10**6 + "}"])
def test_a_prompt_that_is_refused_is_not_repeated_whole(prompt: str) -> None:
    with pytest.raises(InvalidArgument, match="p: ") as caught:
        Prompt.read(prompt, "p")
    assert len(caught.value.message) < 300
