"""A model behind HTTP that answers by a script: bounds, retries, keys and what is refused."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import Any

import httpx
import pytest

from quire.core.errors import ConfigError, EngineFault, InvalidArgument, QuireError
from quire.programs.workflow import App, Engine, Graph, Node, Profile, use_keys
from quire.programs.workflow.engines.durations import seconds_alone
from quire.programs.workflow.engines.endpoint import Endpoint
from quire.programs.workflow.execution.answer_text import SaidText
from quire.programs.workflow.execution.watching import StepLog
from quire.programs.workflow.graphs.primitives import Op, Primitive
from quire.programs.workflow.runners import remote
from quire.programs.workflow.runners.calls import StreamedAnswers
from quire.programs.workflow.runners.remote import RemoteRunner
from quire.programs.workflow.template.keys import key_of

URL = "http://127.0.0.1:9/v1"
REMOTE = {"base_url": URL, "model": "big"}
SCHEMA = {"type": "array", "items": {"type": "string"}, "minItems": 2, "maxItems": 2}


class Words(StepLog):
    reads_text = True

    def __init__(self) -> None:
        super().__init__()
        self.said_of: list[tuple[str, SaidText]] = []

    async def said(self, output: str, said: SaidText) -> None:
        self.said_of.append((output, said))


def app_of(config: Mapping[str, Any] = REMOTE, **ask: Any) -> App:
    app = App("remote", [Engine("llm", config=config)])
    kind = "texts" if "schema" in ask else "text"
    node = Node(
        "llm", {"question": "text"}, {"answer": kind}, "splittable" if "schema" in ask else None,
        {"prompt": "Say: {question}", **ask}, name="ask",
    )  # fmt: skip
    app.update_template([node])
    return app


def primitive_of(**ask: Any) -> Primitive:
    graph = Graph.optimize(app_of(**ask), {"question": "why"}).e_graph
    (primitive,) = graph.primitives.values()
    return primitive


Answers = Callable[[httpx.Request], httpx.Response]


async def asked(
    answers: Answers,
    endpoint: Endpoint | None = None,
    watcher: Words | None = None,
    pauses: list[float] | None = None,
    key: str | None = None,
    **ask: Any,
) -> Any:
    async def sleep(pause_s: float) -> None:
        if pauses is not None:
            pauses.append(pause_s)

    primitive = primitive_of(**ask)
    streamed = None if watcher is None else StreamedAnswers(watcher)
    if streamed is not None:
        streamed.outputs = {primitive.id: "answer"}
    transport = httpx.MockTransport(answers)
    runner = RemoteRunner(endpoint or Endpoint(**REMOTE), streamed, transport, sleep, key=key)
    try:
        return (await runner.run(primitive, {"question": "why"}))["out"]
    finally:
        await runner.close()


def said(text: str, reason: str = "stop") -> httpx.Response:
    choice = {"message": {"role": "assistant", "content": text}, "finish_reason": reason}
    return httpx.Response(200, json={"choices": [choice]})


def in_turn(*answers: httpx.Response | Exception) -> tuple[Answers, list[httpx.Request]]:
    requests: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        found = answers[min(len(requests), len(answers) - 1)]
        requests.append(request)
        if isinstance(found, Exception):
            raise found
        return found

    return answer, requests


def test_a_call_is_one_primitive() -> None:
    primitive = primitive_of()
    assert (primitive.id, primitive.op) == ("ask.call", Op.GENERATING)
    assert [str(part) for part in primitive.parts] == ["Say: ", "{question}"]
    graph = Graph.optimize(app_of(schema=SCHEMA), {"question": "why"})
    (note,) = graph.notes
    assert (note.rule, note.applied) == ("prefill", False)
    assert note.text.startswith("its model is asked over HTTP: the prompt is sent whole")
    with pytest.raises(
        InvalidArgument, match="ask: model is given, and the engine is a model behi"
    ):
        Graph.optimize(app_of(), {"question": "why"}, {"ask": {"model": "other"}})
    profile = Profile(times=((1, 0.5), (999, 0.5)), token_s=0.1)
    assert seconds_alone(primitive_of(max_tokens=10), {"llm": profile}) == pytest.approx(1.5)


async def test_the_request_is_openais() -> None:
    answers, requests = in_turn(said("Because. Answer: so"))
    written = {"system": "Be short.", "answer_after": "Answer:"}
    parameters = {"temperature": None, "max_tokens": None, "max_completion_tokens": 9}
    endpoint = Endpoint(**REMOTE, api_key_env="REMOTE_KEY", parameters=parameters)
    assert await asked(answers, endpoint, key="secret", **written) == "so"
    (request,) = requests
    assert str(request.url) == f"{URL}/chat/completions"
    assert request.headers["authorization"] == "Bearer secret"
    assert json.loads(request.content) == {
        "model": "big", "max_completion_tokens": 9,
        "messages": [
            {"role": "system", "content": "Be short."}, {"role": "user", "content": "Say: why"}
        ],
    }  # fmt: skip
    assert await asked(answers) == "Because. Answer: so"
    plain = json.loads(requests[1].content)
    assert (plain["max_tokens"], plain["temperature"]) == (256, 0)
    assert "authorization" not in requests[1].headers


async def test_elements_come_by_a_schema() -> None:
    answers, requests = in_turn(said('{"elements": ["a", "b"]}'))
    assert await asked(answers, schema=SCHEMA) == ["a", "b"]
    sent = json.loads(requests[0].content)["response_format"]["json_schema"]["schema"]
    assert sent["properties"] == {"elements": SCHEMA}
    for text, reason, error, message in (
        ('{"elem', "length", InvalidArgument, "cut off: raise max_tokens, which is 256"),
        ("no", "stop", EngineFault, "answered 'no', which is not what the schema says"),
        ('{"elements": [1, 2]}', "stop", EngineFault, "not what the schema says"),
        ('{"elements": ["a"]}', "stop", EngineFault, "gave 1 elements, and the schema says 2 to 2"),
    ):
        with pytest.raises(error, match=message):
            await asked(in_turn(said(text, reason))[0], schema=SCHEMA)


async def test_what_may_pass_is_asked_again() -> None:
    pauses: list[float] = []
    busy = httpx.Response(429, headers={"retry-after": "7"}, text="busy")
    answers, requests = in_turn(busy, httpx.ConnectError("refused"), said("yes"))
    assert await asked(answers, pauses=pauses) == "yes"
    assert len(requests) == 3
    assert pauses == [7.0, 2.0]
    forever, _ = in_turn(httpx.Response(503, headers={"retry-after": "9999"}, text="down"))
    with pytest.raises(
        EngineFault,
        match=rf"{URL} was asked 3 times for big and gave no answer: status 503 \(down\)",
    ):
        await asked(forever, pauses=pauses)
    assert pauses[2:] == [30.0, 30.0]
    once = Endpoint(**REMOTE, retries=0)
    with pytest.raises(EngineFault, match=r"asked once for big .*: ConnectError: refused: see"):
        await asked(in_turn(httpx.ConnectError("refused"))[0], once)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (httpx.Response(401, text="bad key"), r"chat/completions: status 401 \(bad key\)"),
        (
            httpx.Response(200, text="<html>"),
            "none of OpenAI's chat completions: '<html>': is base",
        ),
        (httpx.Response(200, text="[" * 99_999), "none of OpenAI's chat completions"),
        (httpx.Response(200, json={"choices": []}), "none of OpenAI's chat completions"),
        (
            httpx.Response(200, json={"choices": [{"message": {"content": [1]}}]}),
            r"the answer is no text: \[1\]",
        ),
        (httpx.Response(200, content=b"x" * (remote.MAX_ANSWER_BYTES + 1)), "more than 8388608"),
    ],
)
async def test_what_asking_again_does_not_help_is_told_at_once(
    answer: httpx.Response, message: str
) -> None:
    answers, requests = in_turn(answer)
    with pytest.raises(EngineFault, match=message):
        await asked(answers)
    assert len(requests) == 1


async def test_a_try_has_a_limit_of_time() -> None:
    async def never(request: httpx.Request) -> httpx.Response:
        await asyncio.Event().wait()
        raise AssertionError

    endpoint = Endpoint(**REMOTE, timeout_s=0.01, retries=1)
    with pytest.raises(EngineFault, match=r"asked 2 times .*: no whole answer within 0\.01 s"):
        await asked(never, endpoint)  # type: ignore[arg-type]


def events(*pieces: str, ends: bool = True) -> httpx.Response:
    found = [{"choices": [{"delta": {"content": piece}}]} for piece in pieces]
    lines = [json.dumps(one) for one in [*found, {"choices": [], "usage": {}}]]
    text = "".join(f"data: {line}\n\n" for line in [*lines, *(["[DONE]"] if ends else [])])
    return httpx.Response(200, text=text)


async def test_a_watched_answer_is_told_as_it_comes() -> None:
    watcher = Words()
    answers, requests = in_turn(events("Be", "cause"))
    assert await asked(answers, watcher=watcher) == "Because"
    assert watcher.said_of == [("answer", SaidText("Be")), ("answer", SaidText("cause"))]
    assert json.loads(requests[0].content)["stream"] is True


async def test_a_stream_that_breaks_off_begins_again() -> None:
    watcher = Words()
    broken = httpx.Response(200, text='data: {"error": "overloaded"}\n\n')
    answers, _ = in_turn(events("Wr", ends=False), broken, events("Right"))
    assert await asked(answers, watcher=watcher) == "Right"
    assert watcher.said_of[-1] == ("answer", SaidText("Right", begins_again=True))
    endless = httpx.Response(200, content=b"data: {}\n\n" * (remote.MAX_ANSWER_BYTES // 10 + 1))
    with pytest.raises(EngineFault, match="an answer has more than 8388608 bytes"):
        await asked(in_turn(endless)[0], watcher=Words())
    with pytest.raises(EngineFault, match="it broke off: 'overloaded'"):
        await asked(in_turn(broken)[0], watcher=Words())


KEYED = {**REMOTE, "api_key_env": "REMOTE_KEY"}


def test_a_key_comes_from_whoever_starts_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """And from no environment that nobody has given."""
    monkeypatch.setenv("REMOTE_KEY", "of the environment")
    app = App("one", [Engine("llm", config=KEYED), Engine("chunker")])
    for missing in ({}, {"REMOTE_KEY": " "}, {"OTHER_KEY": "x"}):
        use_keys(app, missing)
        with pytest.raises(ConfigError, match="variable REMOTE_KEY, which is not set: set it"):
            key_of(app.engines["llm"], URL)
    use_keys(app, {"REMOTE_KEY": " secret "})
    assert key_of(app.engines["llm"], URL) == "secret"
    assert key_of(app.engines["chunker"], URL) is None
    assert "secret" not in repr(app.engines["llm"])


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"base_url": URL}, "model is missing: name the model that the endpoint serves"),
        ({"timeout_s": 3}, "timeout_s is for a model behind HTTP: give its base_url too"),
        ({**REMOTE, "light": True}, "light chooses a model of the node"),
        ({**REMOTE, "base_url": "ftp://x"}, "base_url is 'ftp://x': give http"),
        ({**REMOTE, "base_url": "http://me:key@x/v1"}, "without a key or query"),
        ({**REMOTE, "base_url": 3}, "base_url is 3: give http"),
        ({**REMOTE, "base_url": "http://x:99999"}, "give http"),
        ({**REMOTE, "api_key_env": "sk-123"}, "api_key_env is 'sk-123': name an environment"),
        ({**REMOTE, "timeout_s": 0}, "timeout_s is 0: give seconds above 0"),
        ({**REMOTE, "timeout_s": float("nan")}, "timeout_s is nan"),
        ({**REMOTE, "retries": 9}, "retries is 9: give 0 to 8"),
        ({**REMOTE, "retries": True}, "retries is True"),
        ({**REMOTE, "parameters": {"stream": True}}, "give fields of a request, none of messages"),
        ({**REMOTE, "api_key": "x"}, "has no 'api_key'; it takes api_key_env, base_url"),
    ],
)
def test_an_endpoint_that_cannot_be_is_refused(config: dict[str, Any], message: str) -> None:
    with pytest.raises(QuireError, match=message):
        Engine("llm", config=config)
