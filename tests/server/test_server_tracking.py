"""``quire.client.track`` with the real clients: what their calls are to a node."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import httpx2
import openai
import pytest
from langchain_core.runnables import RunnableLambda
from langchain_openai import ChatOpenAI
from scripted_server import MODEL, RunningServer

from quire.client import program, track
from quire.core.ids import TenantId

ASKED: Any = [{"role": "user", "content": "say some words"}]


@pytest.fixture(autouse=True)
def _all_ended(server: RunningServer) -> Iterator[None]:
    """Whatever the client: at the end of its block the session is gone."""
    yield
    open_now = server.call(lambda: server.node.sessions(TenantId("default")))
    assert [one.client_id for one in open_now if "tracked" in (one.client_id or "")] == []


def session_of(http: httpx.Client, one: program) -> dict[str, Any]:
    response = http.get(f"/v1/sessions/{one.id}")
    response.raise_for_status()
    found: dict[str, Any] = response.json()
    return found


def counts(http: httpx.Client, one: program) -> tuple[int, int]:
    """Its calls and its threads."""
    found = session_of(http, one)
    return found["num_calls"], found["figures"]["num_threads"]


def test_openai(http: httpx.Client, server: RunningServer) -> None:
    client = track(openai.OpenAI(base_url=f"{server.url}/v1", api_key="none"))
    with client, program("tracked") as one:
        client.chat.completions.create(model=MODEL, messages=ASKED)
        for _ in client.chat.completions.create(model=MODEL, messages=ASKED, stream=True):
            pass
        client.with_options(timeout=60).responses.create(model=MODEL, input="say x")
        with client.completions.with_streaming_response.create(model=MODEL, prompt="x") as raw:
            raw.read()
        assert counts(http, one) == (4, 1)
        assert session_of(http, one)["metadata"] == {"name": "tracked"}


async def test_openai_async(http: httpx.Client, server: RunningServer) -> None:
    async with track(openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none")) as client:

        async def ask() -> None:
            stream = await client.chat.completions.create(model=MODEL, messages=ASKED, stream=True)
            async for _ in stream:
                pass

        async with program("tracked") as outer:
            await ask()
            await asyncio.gather(*(ask() for _ in range(3)))
            async with program("tracked-below", deadline_s=60) as inner:
                await ask()
                assert session_of(http, inner)["parent"] == outer.id
                assert session_of(http, inner)["deadline_s"] == 60
            assert counts(http, outer) == (4, 4)


def test_a_sync_block_around_a_loop_ends_its_session_too(
    http: httpx.Client, server: RunningServer
) -> None:
    async def main() -> None:
        async with track(openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="x")) as client:
            await client.chat.completions.create(model=MODEL, messages=ASKED)

    with program("tracked") as one:
        asyncio.run(main())
        assert counts(http, one) == (1, 1)


def test_a_client_that_was_closed_in_the_block(http: httpx.Client, server: RunningServer) -> None:
    with program("tracked") as one:
        with track(openai.OpenAI(base_url=f"{server.url}/v1", api_key="x")) as client:
            client.chat.completions.create(model=MODEL, messages=ASKED)
        assert counts(http, one) == (1, 1)


@pytest.fixture
def chat(server: RunningServer) -> Iterator[ChatOpenAI]:
    with httpx2.Client() as http:
        yield ChatOpenAI(
            model=MODEL,
            base_url=f"{server.url}/v1",
            api_key="none",
            http_client=track(http),
            http_async_client=track(httpx2.AsyncClient()),
        )


def test_langchain(http: httpx.Client, chat: ChatOpenAI) -> None:
    with program("tracked") as one:
        chat.invoke("say x")
        for _ in chat.bind(temperature=0).stream("say x"):
            pass
        assert counts(http, one) == (2, 1)
        chat.batch(["say a", "say b"])  # in threads of its executor
        num_calls, num_threads = counts(http, one)
    assert num_calls == 4
    assert num_threads >= 2


async def test_langchain_async(http: httpx.Client, chat: ChatOpenAI) -> None:
    chain = RunnableLambda(lambda text: f"say {text}") | chat
    async with program("tracked") as one:
        await chat.ainvoke("say x")
        async for _ in chat.astream("say x"):
            pass
        await asyncio.gather(chain.ainvoke("a"), chain.ainvoke("b"))
        num_calls, num_threads = counts(http, one)
    assert num_calls == 4
    assert num_threads >= 3
    await chat.root_async_client.close()


def test_langchain_by_its_root_client(http: httpx.Client, server: RunningServer) -> None:
    with httpx2.Client() as own:
        chat = ChatOpenAI(model=MODEL, base_url=f"{server.url}/v1", api_key="none", http_client=own)
        track(chat.root_client)
        with program("tracked") as one:
            chat.invoke("say x")
            assert counts(http, one) == (1, 1)


def test_anthropic(http: httpx.Client, server: RunningServer) -> None:
    client = track(anthropic.Anthropic(base_url=server.url, api_key="none"))
    with client, program("tracked") as one:
        for _ in range(2):
            client.messages.create(model=MODEL, max_tokens=8, messages=ASKED)
        assert counts(http, one) == (2, 1)
