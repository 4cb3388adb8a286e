"""Responses that go on without their client: read later, followed again, cancelled, bounded."""

from __future__ import annotations

import gc
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, cast
from unittest.mock import Mock

import httpx
import openai
import pytest
from openai.types.responses import Response
from request_log import RequestLines
from scripted_server import MODEL, GatedEngine, RunningServer, running_server
from test_server_response_format import formatter

from quire.core.config import ServerConfig
from quire.core.decoding import FinishReason
from quire.core.errors import QuotaExceeded
from quire.programs.builtin import ChoiceChunk
from quire.server.answers.generation import GenerationStream, PromptChunk
from quire.server.responses.background import BackgroundRun
from quire.server.schemas.responses import ResponseObject


@pytest.fixture(scope="module")
def engine() -> GatedEngine:
    return GatedEngine()


@pytest.fixture(scope="module")
def gated(engine: GatedEngine) -> Iterator[RunningServer]:
    config = ServerConfig(drain_timeout_s=1.0)
    with running_server(config, load=lambda: engine) as running:
        yield running


@pytest.fixture
def closed_gate(engine: GatedEngine) -> Iterator[GatedEngine]:
    engine.arrived.clear()
    engine.gate.clear()
    yield engine
    engine.gate.set()


@pytest.fixture
def client(gated: RunningServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{gated.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def start(client: openai.OpenAI, text: str, **fields: Any) -> Response:
    found = client.responses.create(model=MODEL, input=text, background=True, **fields)
    assert isinstance(found, Response)
    return found


def first_event(client: openai.OpenAI, text: str) -> Response:
    """The response as the first event of a stream tells it; then the client leaves."""
    with client.responses.create(model=MODEL, input=text, background=True, stream=True) as stream:
        event = next(iter(stream))
        assert event.type == "response.created"
        return event.response


def finished(client: openai.OpenAI, lines: RequestLines, response: Response) -> Response:
    assert lines.next()["outcome"] == "finished"
    found = client.responses.retrieve(response.id)
    assert found.status == "completed"
    return found


def test_it_is_read_when_it_is_done(
    client: openai.OpenAI, closed_gate: GatedEngine, request_lines: RequestLines
) -> None:
    made = start(client, "say later")
    assert (made.status, made.background, made.output) == ("queued", True, [])
    assert closed_gate.arrived.wait(60)
    assert client.responses.retrieve(made.id).status == "queued"
    with pytest.raises(openai.BadRequestError, match="has no answer"):
        client.responses.create(model=MODEL, input="say x", previous_response_id=made.id)
    closed_gate.gate.set()
    found = finished(client, request_lines, made)
    assert found.output_text == "later"
    assert found.usage is not None


def test_the_client_may_leave_and_come_back_to_the_events(
    client: openai.OpenAI, request_lines: RequestLines
) -> None:
    made = first_event(client, "say " + "word " * 50)
    events = list(client.responses.retrieve(made.id, stream=True, starting_after=1))
    assert [event.sequence_number for event in events] == list(range(2, 2 + len(events)))
    assert events[-1].type == "response.completed"
    told = "".join(e.delta for e in events if e.type == "response.output_text.delta")
    assert told == "word " * 50 == finished(client, request_lines, made).output_text
    again = client.responses.retrieve(made.id, stream=True, starting_after=len(events))
    assert [event.type for event in again] == ["response.completed"]


def test_a_follower_is_told_the_id_before_any_work_is_done(
    client: openai.OpenAI, closed_gate: GatedEngine, request_lines: RequestLines
) -> None:
    """Else one that is cut off while the response waits could not come back to it."""
    with client.responses.create(
        model=MODEL, input="say x", background=True, stream=True
    ) as stream:
        events = iter(stream)
        created, queued = next(events), next(events)
        assert (created.type, queued.type) == ("response.created", "response.queued")
        assert client.responses.retrieve(created.response.id).status == "queued"
        client.responses.cancel(created.response.id)
        assert list(events) == []
    assert request_lines.next()["outcome"] == "aborted"


class OneChunk:
    """A generation of one chunk."""

    def __init__(self, finish_reason: FinishReason) -> None:
        self.cancelled = ""
        self._finish_reason = finish_reason

    def cancel(self, reason: str) -> None:
        self.cancelled = reason

    async def __aiter__(self) -> AsyncIterator[PromptChunk]:
        chunk = ChoiceChunk(index=0, text="x", token_ids=(1,), finish_reason=self._finish_reason)
        yield PromptChunk(0, chunk)


def in_background(
    generation: OneChunk,
    ended: list[ResponseObject],
    on_grown: Callable[[], None] = lambda: None,
) -> BackgroundRun:
    return BackgroundRun(
        cast(GenerationStream, generation),
        formatter(background=True),
        Mock(),
        on_finished=lambda: None,
        on_end=ended.append,
        on_grown=on_grown,
        keep_events=True,
    )


async def test_of_one_that_has_ended_only_its_events_are_left() -> None:
    """The prompt's tokens and images must not stay with what is stored."""
    ended: list[ResponseObject] = []
    generation = OneChunk("stop")
    left = weakref.ref(generation)
    run = in_background(generation, ended)
    del generation
    await run.wait_ended()
    gc.collect()
    assert left() is None
    assert ended[0].status == "completed"
    run.cancel()
    assert b"response.completed" in b"".join([events async for events in run.follow(-1)])


async def test_one_that_fails_on_the_way_ends_its_calls() -> None:
    ended: list[ResponseObject] = []
    generation = OneChunk("cancelled")
    await in_background(generation, ended).wait_ended()
    assert generation.cancelled == "the response has failed"
    assert ended[0].status == "failed"


async def test_one_whose_events_are_too_many_fails_and_says_so() -> None:
    def too_many() -> None:
        raise QuotaExceeded("too many events")

    ended: list[ResponseObject] = []
    generation = OneChunk("stop")
    run = in_background(generation, ended, too_many)
    await run.wait_ended()
    assert generation.cancelled == "the response has failed"
    assert ended[0].status == "failed"
    assert ended[0].error is not None
    assert "too many events" in str(ended[0].error)
    assert b"response.failed" in b"".join([events async for events in run.follow(-1)])


def test_cancelling_ends_it_and_frees_its_pages(
    gated: RunningServer,
    client: openai.OpenAI,
    closed_gate: GatedEngine,
    request_lines: RequestLines,
) -> None:
    made = start(client, "say " + "x" * 400)
    assert closed_gate.arrived.wait(60)
    found = client.responses.cancel(made.id)
    assert found.status == "cancelled"
    line = request_lines.next()
    assert (line["outcome"], line["reason"]) == ("aborted", "cancelled by the client")
    assert client.responses.cancel(made.id).status == "cancelled"
    assert client.responses.retrieve(made.id).status == "cancelled"
    client.responses.delete(made.id)
    closed_gate.gate.set()
    end_sessions(gated)
    assert gated.num_held_blocks() == 0


def end_sessions(server: RunningServer) -> None:
    """End the sessions of the other tests, and with them the pages that they keep."""
    for session, _ in server.call(lambda: list(server.node._parts.sessions._open.values())):
        server.call(session.end)


def test_deleting_one_that_runs_cancels_it(
    client: openai.OpenAI, closed_gate: GatedEngine, request_lines: RequestLines
) -> None:
    made = start(client, "say x")
    assert closed_gate.arrived.wait(60)
    client.responses.delete(made.id)
    assert request_lines.next()["outcome"] == "aborted"
    closed_gate.gate.set()
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(made.id)


def test_cancelling_after_the_end_changes_nothing(
    client: openai.OpenAI, request_lines: RequestLines
) -> None:
    made = finished(client, request_lines, start(client, "say done"))
    assert client.responses.cancel(made.id) == made


def test_a_response_goes_on_from_one_in_the_background(
    client: openai.OpenAI, request_lines: RequestLines
) -> None:
    made = finished(client, request_lines, start(client, "say " + "long " * 20))
    found = client.responses.create(
        model=MODEL, input="say on", previous_response_id=made.id, stream=False
    )
    assert found.usage is not None
    assert found.usage.input_tokens_details.cached_tokens > 100


def test_no_more_than_so_many_run(
    client: openai.OpenAI, closed_gate: GatedEngine, request_lines: RequestLines
) -> None:
    made = [start(client, f"say {number}") for number in range(64)]
    with pytest.raises(openai.RateLimitError, match="64 responses are running"):
        start(client, "say one more")
    client.responses.cancel(made[0].id)
    made.append(start(client, "say one more"))
    closed_gate.gate.set()
    outcomes = [request_lines.next()["outcome"] for _ in made]
    assert sorted(outcomes) == ["aborted"] + ["finished"] * 64


def test_a_failure_is_told_when_it_is_read() -> None:
    """The node stops while the response runs: it has failed, and its followers hear so."""
    engine = GatedEngine()
    with running_server(load=lambda: engine) as server:
        engine.gate.clear()
        body = {"input": "say x", "background": True, "stream": True}
        with httpx.stream("POST", f"{server.url}/v1/responses", json=body, timeout=60) as stream:
            assert engine.arrived.wait(60)
            server.loop.call_soon_threadsafe(server.service.request_stop)
            server.loop.call_soon_threadsafe(server.service.request_stop)
            text = stream.read().decode()
            engine.gate.set()
    assert "event: error\n" in text
    assert "event: response.failed\n" in text
    assert '"status":"failed"' in text
