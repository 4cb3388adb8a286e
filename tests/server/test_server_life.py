"""Loading, readiness, draining, an engine that dies: what clients see meanwhile."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import httpx
import openai
import pytest
from request_log import RequestLines
from scripted_server import (
    MODEL,
    TOKENIZER,
    GatedEngine,
    RunningServer,
    running_server,
    scripted_engine,
    scripted_files,
    scripted_node,
)

from quire.core.actions import Action
from quire.core.config import ServerConfig, TenantConfig
from quire.core.errors import ConfigError, ModelNotFound, QuireError
from quire.core.events import Event, ProgramEnded
from quire.core.ids import TenantId
from quire.core.quotas import Quotas
from quire.node.transports import InProcessTransport
from quire.programs.builtin import CompletionRequest, complete
from quire.server.listening.binding import bind
from quire.server.serve import Service, make_node
from quire.testing import FakeEngine

CHAT = "/v1/chat/completions"
HI = {"messages": [{"role": "user", "content": "say hi"}]}


def test_http_answers_while_the_model_loads() -> None:
    loading, go_on = threading.Event(), threading.Event()

    def load() -> FakeEngine:
        loading.set()
        go_on.wait()
        return scripted_engine()

    with running_server(load=load, wait_ready=False) as server:
        assert loading.wait(60)
        ready = httpx.get(f"{server.url}/ready", timeout=60)
        assert ready.status_code == 503
        assert ready.json()["status"] == "loading"
        assert ready.headers["retry-after"]
        health = httpx.get(f"{server.url}/health", timeout=60)
        assert health.status_code == 200
        assert health.json()["sandbox"] == {"0": {"state": "idle", "detail": "", "losses": 0}}
        for method in ("GET", "HEAD"):
            listed = httpx.request(method, f"{server.url}/v1/models", timeout=60)
            assert listed.status_code == 503
            assert listed.headers["retry-after"]
        assert httpx.get(f"{server.url}/metrics", timeout=60).status_code == 200
        early = httpx.post(server.url + CHAT, json=HI, timeout=60)
        assert early.status_code == 503
        assert early.headers["retry-after"]
        launch = httpx.post(
            f"{server.url}/v1/programs", json={"program": "text_completion"}, timeout=60
        )
        assert launch.status_code == 503
        assert httpx.get(f"{server.url}/v1/programs", timeout=60).json()["data"] == []
        assert "quire_processes 0.0" in httpx.get(f"{server.url}/metrics", timeout=60).text
        go_on.set()
        # the openai package repeats what it may repeat
        with openai.OpenAI(base_url=f"{server.url}/v1", api_key="x", max_retries=20) as client:
            assert client.models.list().data[0].id == MODEL
            found = client.chat.completions.create(
                model=MODEL, messages=[{"role": "user", "content": "say loaded"}]
            )
        assert found.choices[0].message.content == "loaded"
        assert httpx.get(f"{server.url}/ready", timeout=60).status_code == 200


@contextmanager
def running_in_thread(function: threading.Thread) -> Iterator[None]:
    function.start()
    try:
        yield
    finally:
        function.join()


def test_draining_finishes_what_runs_and_refuses_the_rest(request_lines: RequestLines) -> None:
    engine = GatedEngine()
    answers: list[httpx.Response] = []

    def ask(server: RunningServer) -> None:
        answers.append(httpx.post(server.url + CHAT, json=HI, timeout=60))

    config = ServerConfig(drain_timeout_s=60)
    with running_server(config, load=lambda: engine) as server:
        engine.gate.clear()
        with running_in_thread(threading.Thread(target=ask, args=(server,))):
            assert engine.arrived.wait(60)
            server.call(server.service.request_stop)
            late = httpx.post(server.url + CHAT, json=HI, timeout=60)
            assert late.status_code == 503
            assert late.json()["error"]["code"] == "draining"
            assert late.headers["retry-after"]
            ready = httpx.get(f"{server.url}/ready", timeout=60)
            assert (ready.status_code, ready.json()["status"]) == (503, "draining")
            engine.gate.set()
    assert answers[0].json()["choices"][0]["message"]["content"] == "hi"
    assert request_lines.next()["outcome"] == "finished"


@pytest.mark.parametrize("prompts", ["say hi", ["say hi", "say ho"]])
def test_asked_twice_it_cancels_what_runs(
    request_lines: RequestLines, prompts: str | list[str]
) -> None:
    engine = GatedEngine()
    answers: list[httpx.Response] = []

    def ask(server: RunningServer) -> None:
        body = {"prompt": prompts}
        answers.append(httpx.post(f"{server.url}/v1/completions", json=body, timeout=60))

    config = ServerConfig(drain_timeout_s=600)
    with running_server(config, load=lambda: engine) as server:
        engine.gate.clear()
        with running_in_thread(threading.Thread(target=ask, args=(server,))):
            assert engine.arrived.wait(60)
            server.call(server.service.request_stop)
            server.call(server.service.request_stop)
            assert request_lines.next()["error"] == "program_cancelled"
            engine.gate.set()
    assert answers[0].status_code == 409
    assert answers[0].json()["error"]["code"] == "program_cancelled"


def test_asked_twice_a_stream_ends_with_its_error(
    request_lines: RequestLines, caplog: pytest.LogCaptureFixture
) -> None:
    engine = GatedEngine()
    engine.close_after(2)  # by itself: a client on a busy machine might come too late
    body = {**HI, "stream": True, "ignore_eos": True, "max_tokens": 900}
    config = ServerConfig(drain_timeout_s=600)
    with (
        running_server(config, load=lambda: engine) as server,
        httpx.stream("POST", server.url + CHAT, json=body, timeout=60) as response,
    ):
        lines = response.iter_lines()
        assert next(lines).startswith("data: {")
        assert engine.arrived.wait(60)
        server.call(server.service.request_stop)
        server.call(server.service.request_stop)
        *_, error, _, done, _ = lines
        engine.gate.set()
    assert done == "data: [DONE]"
    assert json.loads(error.removeprefix("data: "))["error"]["code"] == "program_cancelled"
    assert request_lines.next()["error"] == "program_cancelled"
    assert "Exception in ASGI application" not in caplog.text


def test_a_node_that_cannot_start_ends_the_service() -> None:
    def load() -> FakeEngine:
        raise ModelNotFound("no such model")

    async def main() -> None:
        server = ServerConfig(port=0)
        node, config = scripted_node(load=load)
        with bind(server) as sock:
            await Service(node, config, server, sock).run()

    with pytest.raises(QuireError, match="no such model"):
        asyncio.run(main())


class Ends:
    """An observer of control that keeps why programs ended."""

    def __init__(self) -> None:
        self.reason = asyncio.get_running_loop().create_future()

    def observe(self, event: Event, actions: Sequence[Action]) -> None:
        if isinstance(event, ProgramEnded):
            self.reason.get_loop().call_soon_threadsafe(self.reason.set_result, event.reason)

    def observe_failure(self, event: Event, error: Exception) -> None:
        raise error

    def flush(self) -> None: ...


async def test_an_idle_session_lives_as_long_as_configured() -> None:
    _, config = scripted_node()
    node = make_node(
        config,
        ServerConfig(session_ttl_s=0.01),
        transport_factory=lambda engine: InProcessTransport(engine.name, scripted_engine),
        model_files=scripted_files,
    )
    ends = Ends()
    node._parts.observers.append(ends)
    await node.start()
    try:
        request = CompletionRequest(prompt=tuple(TOKENIZER.encode("say hi")), max_tokens=4)
        call = node.session(TenantId("default"), "mine").call(complete, request)
        assert [chunk async for chunk in call]
        assert await ends.reason == "idle for 0.01 s"
    finally:
        await node.stop()


def test_a_taken_port_is_a_clear_error() -> None:
    with bind(ServerConfig(port=0)) as sock:
        port = sock.getsockname()[1]
        with pytest.raises(ConfigError, match=f"127.0.0.1:{port}.*choose another --port"):
            bind(ServerConfig(port=port))


def test_an_address_of_another_machine_is_a_clear_error() -> None:
    with pytest.raises(ConfigError, match=r"192\.0\.2\.1:0: .*give --host an address of this"):
        bind(ServerConfig(host="192.0.2.1", port=0))


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")
def test_all_addresses_are_those_of_ipv4_too() -> None:
    with bind(ServerConfig(host="::", port=0)) as sock:
        port = sock.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port), timeout=60):
            pass


def test_an_error_in_the_middle_of_a_stream_is_an_event(request_lines: RequestLines) -> None:
    tenant = TenantConfig(TenantId("small"), quotas=Quotas(max_generated_tokens=10))
    body = {**HI, "stream": True, "ignore_eos": True, "max_tokens": 100}
    with running_server(tenants=(tenant,)) as server:
        with httpx.stream("POST", server.url + CHAT, json=body, timeout=60) as response:
            assert response.status_code == 200
            *_, error, _, done, _ = response.iter_lines()
        assert done == "data: [DONE]"
        assert json.loads(error.removeprefix("data: "))["error"]["code"] == "never_within_quota"
        assert request_lines.next()["error"] == "never_within_quota"
        with (
            openai.OpenAI(base_url=f"{server.url}/v1", api_key="x", max_retries=0) as client,
            pytest.raises(openai.APIError, match="which is its max_generated_tokens"),
        ):
            list(
                client.chat.completions.create(
                    model=MODEL,
                    messages=[{"role": "user", "content": "say x"}],
                    stream=True,
                    max_tokens=100,
                    extra_body={"ignore_eos": True},
                )
            )
        assert server.num_held_blocks() == 0


def test_tokens_that_are_used_up_are_not_asked_for_again() -> None:
    """What was generated stays counted, so the same request would fail again."""
    tenant = TenantConfig(TenantId("small"), quotas=Quotas(max_generated_tokens=10))
    asked: list[httpx.Request] = []
    with (
        running_server(tenants=(tenant,)) as server,
        httpx.Client(event_hooks={"request": [asked.append]}) as http,
        openai.OpenAI(
            base_url=f"{server.url}/v1", api_key="x", max_retries=2, http_client=http
        ) as client,
    ):
        for _ in range(2):
            with pytest.raises(openai.BadRequestError, match="go on in another session") as caught:
                client.chat.completions.create(
                    model=MODEL,
                    messages=[{"role": "user", "content": "say x"}],
                    max_tokens=100,
                    extra_body={"ignore_eos": True},
                    extra_headers={"x-session-id": "one"},
                )
            assert caught.value.code == "never_within_quota"
    assert len(asked) == 2


def test_a_conversation_that_has_used_up_its_tokens_is_told_how_to_go_on() -> None:
    """Its client has named no session, and would be refused at each turn."""
    tenant = TenantConfig(TenantId("small"), quotas=Quotas(max_generated_tokens=6))
    turns = [{"role": "user", "content": "say a b"}]
    with (
        running_server(tenants=(tenant,)) as server,
        httpx.Client(base_url=server.url, timeout=60) as http,
    ):
        first = http.post(CHAT, json={"messages": turns})
        session = first.headers["x-quire-program-id"]
        turns += [first.json()["choices"][0]["message"], {"role": "user", "content": "say on"}]
        body = {"messages": turns, "max_tokens": 100, "ignore_eos": True}
        refused = http.post(CHAT, json=body)
        assert refused.status_code == 400
        told = refused.json()["error"]
        assert told["code"] == "never_within_quota"
        assert told["message"].startswith(f"this conversation (session {session}): ")
        assert "max_generated_tokens" in told["message"]
        assert f"DELETE /v1/sessions/{session} ends this one" in told["message"]
        other = http.post(CHAT, json=body | {"max_tokens": 2}, headers={"x-quire-program-id": "b"})
        assert other.status_code == 200
        http.delete(f"/v1/sessions/{session}").raise_for_status()
        again = http.post(CHAT, json=body | {"max_tokens": 2})
        assert again.status_code == 200
        assert again.headers["x-quire-program-id"] != session


class DyingEngine(GatedEngine):
    """Faults at the next message once told to."""

    def __init__(self) -> None:
        super().__init__()
        self.dies = False

    def execute(self, batch: object) -> object:  # type: ignore[override]
        if self.dies:
            raise RuntimeError("the device fell off the bus")
        return super().execute(batch)  # type: ignore[arg-type]


def test_an_engine_that_dies_mid_stream(request_lines: RequestLines) -> None:
    engines: list[DyingEngine] = []

    def load() -> FakeEngine:
        engines.append(DyingEngine())
        return engines[-1]

    body = {**HI, "stream": True, "ignore_eos": True, "max_tokens": 900}
    with running_server(load=load) as server:
        with httpx.stream("POST", server.url + CHAT, json=body, timeout=60) as response:
            lines = response.iter_lines()
            assert next(lines).startswith("data: {")
            engines[0].dies = True
            rest = list(lines)
        ended = request_lines.next()
        assert rest[-2] == "data: [DONE]"
        if ended["outcome"] == "finished":  # control may recompute what it can and go on
            assert ended["completion_tokens"] == 900
        else:
            assert ended["error"] == "engine_lost"
            assert '"code": "engine_lost"' in rest[-4]
        with openai.OpenAI(base_url=f"{server.url}/v1", api_key="x", max_retries=20) as client:
            found = client.chat.completions.create(
                model=MODEL, messages=[{"role": "user", "content": "say back"}]
            )
        assert found.choices[0].message.content == "back"
        assert len(engines) == 2
