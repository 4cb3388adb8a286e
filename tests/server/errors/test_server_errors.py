"""One shape for every error, the right status, and what clients may do about it."""

from __future__ import annotations

import gzip
import json
from typing import Any

import httpx
import openai
import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from request_log import RequestLines
from scripted_server import MODEL, RunningServer, running_server
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from quire.core.config import TenantConfig
from quire.core.errors import (
    ConfigError,
    Draining,
    EngineFault,
    EngineLost,
    Forbidden,
    GrammarError,
    InvalidArgument,
    MailboxClosed,
    MailboxFull,
    ModelNotFound,
    NeverWithinQuota,
    PoolExhausted,
    ProgramCancelled,
    ProgramFailed,
    PromptTooLong,
    QuireError,
    QuotaExceeded,
    Unauthorized,
    UnknownHandle,
)
from quire.core.ids import TenantId
from quire.core.quotas import Quotas
from quire.programs.chat.template_budget import BudgetedEnvironment
from quire.server.errors.errors import (
    MAX_MESSAGE_CHARS,
    ErrorBoundary,
    body_of,
    error_body,
    headers_of,
    install_handlers,
    status_of,
)

CHAT = "/v1/chat/completions"
HI = [{"role": "user", "content": "hi"}]


def check_shape(response: httpx.Response) -> dict[str, Any]:
    assert response.headers["x-request-id"]
    body = response.json()
    assert set(body) == {"error"}
    error: dict[str, Any] = body["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    assert error["type"]
    return error


SLOW_SCHEMA = {
    "type": "array",
    "prefixItems": [{"type": "integer", "multipleOf": 1009 + i} for i in range(500)],
}
"""Would be compiled for ten seconds."""


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": HI, "n": 0}, "n"),
        ({"messages": HI, "n": 10**6}, "n"),
        ({"messages": HI, "n": "2"}, "n"),
        ({"messages": HI, "n": True}, "n"),
        ({"messages": HI, "n": 1.5}, "n"),
        ({"messages": HI, "temperature": -1}, "temperature"),
        ({"messages": HI, "temperature": "hot"}, "temperature"),
        ({"messages": HI, "top_p": 0}, "top_p"),
        ({"messages": HI, "max_tokens": -1}, "max_tokens"),
        ({"messages": HI, "logit_bias": {"x": 1}}, None),
        ({"messages": HI, "logit_bias": {"9999": 1}}, "logit_bias"),
        ({"messages": HI, "stop": [""]}, "stop[0]"),
        ({"messages": HI, "stop": ["x"] * 17}, "stop"),
        ({"messages": HI, "stop": ["x" * 1025]}, "stop[0]"),
        ({"messages": HI, "bad_words": [""]}, "bad_words[0]"),
        ({"messages": HI, "stop_token_ids": [9999]}, "stop_token_ids"),
        ({"messages": HI, "temprature": 1}, "temprature"),
        ({"messages": HI, "stream_options": {"x": 1}}, "stream_options.x"),
        ({"messages": HI, "stream_options": 5}, "stream_options"),
        ({"messages": HI, "top_logprobs": 5}, "top_logprobs"),
        ({"messages": HI, "logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"messages": HI, "tool_choice": "required"}, "tool_choice"),
        ({"messages": HI, "response_format": {"type": "xml"}}, "response_format"),
        ({"messages": [{"role": "alien", "content": "x"}]}, "messages[0]"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{}]}]}, "messages[0].content[0]"),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "text": 5}]}]},
            "messages[0].content[0].text",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
            "messages[0].content[0].text",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
            "messages[0].content[0].image_url.url",
        ),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].tool_call_id"),
        ({"messages": HI, "tool_choice": "any"}, "tool_choice"),
        ({"messages": HI, "tool_choice": 5}, "tool_choice"),
        ({"messages": HI, "tool_choice": {"type": "function"}}, "tool_choice.function"),
        ({"messages": HI, "tools": [{"type": "function"}]}, "tools[0].function"),
        (
            {"messages": HI, "response_format": {"type": "json_schema"}},
            "response_format.json_schema",
        ),
        (
            {"messages": HI, "response_format": {"type": "json_schema", "json_schema": {}}},
            "response_format.json_schema.name",
        ),
        (
            {
                "messages": HI,
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "n", "schema": 5},
                },
            },
            "response_format.json_schema.schema",
        ),
        ({"messages": HI, "continue_final_message": True}, "continue_final_message"),
        ({"messages": HI, "min_tokens": 5, "max_tokens": 2}, None),
        ({"messages": HI, "structured_outputs": {"regex": "a", "choice": ["a"]}}, None),
        ({"messages": HI, "structured_outputs": {"regex": "(a"}}, "structured_outputs"),
        ({"messages": HI, "structured_outputs": {"json": SLOW_SCHEMA}}, "structured_outputs"),
        (
            {
                "messages": HI,
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "n", "schema": SLOW_SCHEMA},
                },
            },
            "response_format",
        ),
    ],
)
def test_bad_fields_are_400_and_named(
    http: httpx.Client, body: dict[str, Any], param: str | None
) -> None:
    response = http.post(CHAT, json=body)
    assert response.status_code == 400
    error = check_shape(response)
    assert error["type"] == "invalid_request_error"
    if param is not None:
        assert error["param"] == param


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"prompt": [-1, 5]}, "prompt[0]: Input should be greater than or equal to 0"),
        ({"prompt": [10**12]}, "prompt[0]: Input should be less than or equal to 2147483647"),
        ({"prompt": [3, "a"]}, "prompt[1]: Input should be a valid integer"),
        ({"prompt": ["a", 3]}, "prompt[1]: Input should be a valid string"),
        ({"prompt": [[1], [-2]]}, "prompt[1][0]: Input should be greater than or equal to 0"),
        ({"prompt": []}, "prompt: List should have at least 1 item after validation, not 0"),
        ({"prompt": [-1] * 100_000}, "prompt[0]: Input should be greater than or equal to 0"),
        ({"prompt": ["a"] * 1000}, "prompt: List should have at most 256 items after validation"),
        ({"prompt": 5}, "prompt: must be a text, token ids, or a list of either"),
        ({"prompt": "x", "suffix": "y"}, "suffix: filling in the middle is not served"),
        ({"prompt": "x", "stop": [""]}, "stop[0]: String should have at least 1 character"),
        ({"prompt": "x", "stop": ["x"] * 17}, "stop: List should have at most 16 items"),
        ({"prompt": "x", "stop": 5}, "stop: must be a string or a list"),
    ],
)
def test_what_is_wrong_is_said_of_the_shape_that_was_given(
    http: httpx.Client, body: dict[str, Any], message: str
) -> None:
    response = http.post("/v1/completions", json=body)
    assert response.status_code == 400
    said = check_shape(response)["message"]
    assert said.startswith(message)
    assert "more problem" not in said


def test_further_problems_are_named_by_their_fields(http: httpx.Client) -> None:
    body = {"temperature": 9, "n": 0, "top_p": 2, "top_k": "a", "seed": "b"}
    said = check_shape(http.post("/v1/completions", json=body))["message"]
    assert said.endswith(" (and 5 more problems: top_p, top_k, seed, ...)"), said


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        (
            "chat/completions",
            {"messages": HI, "response_format": {"type": "json"}},
            "response_format: type is 'json': it must be one of 'text', 'json_object', ",
        ),
        (
            "chat/completions",
            {"messages": HI, "response_format": {}},
            "response_format: type: Field required",
        ),
        ("rerank", {"query": "a", "documents": [5]}, "documents[0]: must be a text or an object"),
        ("rerank", {"query": "a", "documents": [""]}, "documents[0]: String should have at least"),
        ("rerank", {"query": "a", "documents": ["a", {}]}, "documents[1].text: Field required"),
        ("rerank", {"query": "a", "documents": "a"}, "documents: Input should be a valid list"),
        ("rerank", {"query": ["a"], "documents": ["a"]}, "query: Input should be a valid string"),
        ("score", {"text_1": 5, "text_2": "a"}, "text_1: must be a string or a list"),
        ("score", {"text_1": "a", "text_2": ["a", 1]}, "text_2[1]: Input should be a valid string"),
        ("embeddings", {"input": ["a", 1]}, "input[1]: Input should be a valid string"),
        ("embeddings", {"input": {}}, "input: must be a text, token ids, or a list of either"),
        ("completions", {"prompt": "x", "stream_options": 5}, "stream_options: must be an object"),
        ("completions", {"prompt": "x", "logit_bias": []}, "logit_bias: must be an object"),
        (
            "completions",
            {"prompt": "x", "structured_outputs": {"json": {"uniqueItems": True}}},
            "structured_outputs: #: uniqueItems: answers cannot be held to it",
        ),
        (
            "responses",
            {"input": "x", "tool_choice": {"type": "function"}},
            "tool_choice.name: Field required",
        ),
        (
            "responses",
            {"input": "x", "tool_choice": {"type": "mcp"}},
            "tool_choice: must be none, auto, required or an object of type function",
        ),
        (
            "responses",
            {"input": [{"role": "user", "content": [{"type": "input_text"}]}]},
            "input[0].content[0].text: Field required",
        ),
        (
            "messages",
            {"max_tokens": 5, "messages": [{"role": "user", "content": [{"type": "text"}]}]},
            "messages[0].content[0].text: Field required",
        ),
    ],
)
def test_the_place_of_a_mistake_is_that_of_the_request(
    http: httpx.Client, path: str, body: dict[str, Any], message: str
) -> None:
    """Whatever the route: not that of the models which check it, whose unions it would name."""
    response = http.post(f"/v1/{path}", json=body)
    assert response.status_code == 400
    said = response.json()["error"]["message"]
    assert said.startswith(message)
    assert "more problem" not in said


@pytest.mark.parametrize(
    ("field", "value", "instead"),
    [
        ("guided_json", {"type": "object"}, '"structured_outputs": {"json": ...}'),
        ("guided_regex", "a+", '"structured_outputs": {"regex": ...}'),
        ("guided_choice", ["a", "b"], '"structured_outputs": {"choice": ...}'),
        ("guided_grammar", "start: A", '"structured_outputs": {"grammar": ...}'),
        ("ebnf", "root ::= a", '"structured_outputs": {"grammar": ...}, a grammar in Lark'),
        ("functions", [], 'write "tools": ['),
        ("function_call", "auto", 'write "tool_choice"'),
        ("extra_body", {"top_k": 5}, "write its fields beside the others"),
        ("max_new_tokens", 5, 'write "max_tokens"'),
        ("enable_thinking", False, 'write "chat_template_kwargs": {"enable_thinking": ...}'),
        ("guided_decoding_backend", "auto", "there is only one backend"),
        ("guided_decoding", "auto", "check its spelling or leave it out"),
    ],
)
def test_a_field_under_another_servers_name_is_told_ours(
    http: httpx.Client, field: str, value: object, instead: str
) -> None:
    response = http.post(CHAT, json={"messages": HI, field: value})
    assert response.status_code == 400
    error = check_shape(response)
    assert error["param"] == field
    assert error["code"] == "unknown_parameter"
    assert instead in error["message"]


@pytest.mark.parametrize(
    "name", ["messages", "tools", "add_generation_prompt", *BudgetedEnvironment().globals]
)
@pytest.mark.parametrize("path", [CHAT, "/tokenize"])
def test_names_of_the_templates_renderer_are_not_the_clients_to_set(
    http: httpx.Client, name: str, path: str
) -> None:
    response = http.post(path, json={"messages": HI, "chat_template_kwargs": {name: 1}})
    assert response.status_code == 400
    error = check_shape(response)
    assert error["param"] == "chat_template_kwargs"
    assert repr(name) in error["message"]


@pytest.mark.parametrize(
    "body",
    [
        {"messages": HI, "functions": None, "whatever": None},
        {"messages": HI, "stream_options": {"include_usage": None}},
        {"messages": HI, "structured_outputs": {"regex": "a+", "choice": None}},
        {"messages": [{**HI[0], "name": None}], "max_tokens": None},
        {
            "messages": [
                *HI,
                {
                    "role": "assistant",
                    "tool_calls": [
                        {"id": "c", "type": None, "function": {"name": "f", "arguments": None}}
                    ],
                },
                {"role": "tool", "tool_call_id": "c", "content": "x"},
            ]
        },
    ],
)
def test_a_null_field_is_an_absent_one(http: httpx.Client, body: dict[str, Any]) -> None:
    response = http.post(CHAT, json=body)
    assert response.status_code == 200, response.text


def test_a_required_field_that_is_null_is_missing(http: httpx.Client) -> None:
    response = http.post(CHAT, json={"messages": None})
    assert response.status_code == 400
    error = check_shape(response)
    assert (error["param"], error["message"]) == ("messages", "messages: Field required")


def test_nulls_of_a_clients_own_objects_stay(client: openai.OpenAI) -> None:
    """A schema's null is a value."""
    schema = {"type": "object", "properties": {"a": {"const": None}}, "required": ["a"]}
    form: Any = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    said: Any = HI
    found = client.chat.completions.create(
        model="scripted", messages=said, response_format=form, max_tokens=50
    )
    assert json.loads(found.choices[0].message.content or "") == {"a": None}


def test_images_are_refused_by_name(http: httpx.Client) -> None:
    part = {"type": "image_url", "image_url": {"url": "http://example.com/x.png"}}
    response = http.post(CHAT, json={"messages": [{"role": "user", "content": [part]}]})
    assert response.status_code == 400
    assert "image_url, but this model reads text only" in check_shape(response)["message"]


@pytest.mark.parametrize(
    ("content", "headers"),
    [
        (b"{", {"content-type": "application/json"}),
        (b"\xff", {"content-type": "application/json"}),
        (b'{"messages": NaN}', {"content-type": "application/json"}),
        (b'{"n": 1, "n": 2}', {"content-type": "application/json"}),
        (b"[" * 100_000, {"content-type": "application/json"}),
        (b"null", {"content-type": "application/json"}),
        (b"[]", {"content-type": "application/json"}),
        (b"", {"content-type": "application/json"}),
        (b'{"messages": []}', {"content-type": "text/plain"}),
        (b'{"messages": []}', {}),
    ],
)
def test_bodies_that_are_no_request(
    http: httpx.Client, content: bytes, headers: dict[str, str]
) -> None:
    response = http.post(CHAT, content=content, headers=headers)
    assert response.status_code == 400
    error = check_shape(response)
    if content in (b"null", b"[]", b"") or headers.get("content-type") != "application/json":
        assert "content-type: application/json" in error["message"]


def test_unknown_fields_inside_messages_are_ignored(http: httpx.Client) -> None:
    message = {"role": "user", "content": "say ok", "cache_control": {"type": "ephemeral"}}
    response = http.post(CHAT, json={"messages": [message]})
    assert response.status_code == 200
    assert response.json()["choices"][0]["message"]["content"] == "ok"


@pytest.mark.parametrize(
    ("method", "path", "body", "expected"),
    [
        ("POST", CHAT, {"messages": []}, (400, "invalid_argument", "messages: ")),
        ("POST", CHAT, {"messages": HI, "model": "none"}, (404, "model_not_found", "no model")),
        ("POST", CHAT, {"messages": HI, "x": "secret"}, (400, "unknown_parameter", "x: ")),
        ("GET", "/nowhere", None, (404, "not_found", "no route GET /nowhere")),
        ("GET", CHAT, None, (405, "method_not_allowed", "method GET")),
    ],
)
def test_who_runs_the_server_sees_what_was_refused(
    http: httpx.Client,
    request_lines: RequestLines,
    method: str,
    path: str,
    body: Any,
    expected: tuple[int, str, str],
) -> None:
    response = http.request(method, path, json=body, headers={"x-request-id": "r-1"})
    line = request_lines.refused.get(timeout=60)
    status, code, reason = expected
    assert (response.status_code, line["status"], line["error"]) == (status, status, code)
    assert line["reason"].startswith(reason)
    assert (line["request_id"], line["method"], line["route"]) == ("r-1", method, path)
    assert line["client"] == "127.0.0.1"
    assert "secret" not in str(line)
    assert request_lines.refused.empty()


def test_what_has_begun_is_told_once(request_lines: RequestLines) -> None:
    tenant = TenantConfig(TenantId("small"), quotas=Quotas(max_pages=1))
    with running_server(tenants=(tenant,)) as server:
        body = {"prompt": "say " + "x" * 40}
        answer = httpx.post(f"{server.url}/v1/completions", json=body, timeout=60)
        assert answer.status_code == 400
        assert answer.json()["error"]["code"] == "never_within_quota"
        assert request_lines.next()["outcome"] == "failed"
    assert request_lines.refused.empty()


def test_a_body_over_the_limit_is_413(http: httpx.Client) -> None:
    response = http.post(CHAT, content=b" " * (5 << 20))
    assert response.status_code == 413
    assert "4194304 bytes" in check_shape(response)["message"]


@pytest.mark.parametrize("path", [CHAT, "/v1/programs"])
def test_a_body_that_is_encoded_is_415(http: httpx.Client, path: str) -> None:
    encoded = {"content-encoding": "gzip", "content-type": "application/json"}
    response = http.post(path, content=gzip.compress(b"{}"), headers=encoded)
    assert response.status_code == 415
    assert "'gzip'" in check_shape(response)["message"]
    plain = http.post(CHAT, json={"messages": HI}, headers={"content-encoding": "identity"})
    assert plain.status_code == 200


def test_a_chunked_body_over_the_limit_is_413(http: httpx.Client) -> None:
    response = http.post(CHAT, content=(b" " * (1 << 20) for _ in range(5)))
    assert response.status_code == 413
    check_shape(response)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/nowhere"),
        ("GET", "/v1/chat/completions/"),
        ("GET", "/v1/models/none"),
        ("GET", "/v1/programs/none"),
        ("DELETE", "/v1/programs/none"),
    ],
)
def test_routes_that_are_not_there(http: httpx.Client, method: str, path: str) -> None:
    response = http.request(method, path)
    assert response.status_code == 404
    check_shape(response)


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", "/v1/chat/completions", "POST"),
        ("DELETE", "/v1/models", "GET, HEAD"),
        ("PATCH", "/v1/programs", "GET, POST"),  # two routes of one path
    ],
)
def test_a_wrong_method_is_told_the_right_ones(
    http: httpx.Client, method: str, path: str, allowed: str
) -> None:
    response = http.request(method, path)
    assert (response.status_code, response.headers["allow"]) == (405, allowed)
    assert check_shape(response)["message"].endswith(f": send {allowed}")


@pytest.mark.parametrize("path", ["/v1/realtime", "/v1/chat/completions", "/"])
def test_a_websocket_that_is_not_there_is_404(server: RunningServer, path: str) -> None:
    with pytest.raises(InvalidStatus) as refused, connect(server.url.replace("http", "ws") + path):
        pass
    answer = refused.value.response
    assert answer.status_code == 404
    assert answer.headers["x-request-id"]
    error = json.loads(answer.body)["error"]
    assert (error["type"], error["code"]) == ("not_found_error", "not_found")
    assert "attach" in error["message"]


@pytest.mark.parametrize(
    ("query", "param", "code"),
    [
        ("after=x", "after", "invalid_argument"),
        ("after=-1", "after", "invalid_argument"),
        ("afer=1", "afer", "unknown_parameter"),
        ("after=1&after=2", "after", "invalid_argument"),
    ],
)
def test_a_websocket_with_a_wrong_query_is_told_what_is_wrong(
    server: RunningServer, query: str, param: str, code: str
) -> None:
    url = server.url.replace("http", "ws") + f"/v1/programs/prog-1/attach?{query}"
    with pytest.raises(InvalidStatus) as refused, connect(url):
        pass
    answer = refused.value.response
    assert answer.status_code == 400
    error = json.loads(answer.body)["error"]
    assert (error["param"], error["code"]) == (param, code)
    assert error["message"].startswith(f"{param}: ")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, {"messages": HI, "tools": [{"type": "web_search"}]}),
        ("/v1/responses", {"input": "x", "tools": [{"type": "mcp", "server_label": "a"}]}),
        ("/v1/messages", {"messages": HI, "max_tokens": 1, "tools": [{"type": "bash_1"}]}),
    ],
)
def test_a_tool_that_only_a_service_runs_is_told_so(
    http: httpx.Client, path: str, body: dict[str, Any]
) -> None:
    message = http.post(path, json=body).json()["error"]["message"]
    name = body["tools"][0]["type"]
    assert message.startswith(
        f"tools[0].type: {name!r} is a tool that another service runs, or whose schema it knows"
    )


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("/chat/completions", "there is /v1/chat/completions;"),
        ("/v1/chat/completions/", "there is /v1/chat/completions;"),
        ("/v1/v1/messages", "there is /v1/messages;"),
        ("/v1/tokenize", "there is /tokenize;"),
        ("/v1/audio/speech", "no models of speech are served here"),
        ("/v1/nothing/at/all", "/openapi.json has all of them"),
        ("/v1/chat/completion", "there is /v1/chat/completions"),
        ("/completion", "there is /v1/completions"),
        ("/embedding", "there is /v1/embeddings"),
        ("/v1/programs/prog-1/attach", "it is a WebSocket"),
        ("/", "/ui shows the node in a browser"),
        ("/" + "a" * 50_000, "/openapi.json has all of them"),
    ],
)
def test_a_path_that_is_nearly_ours_is_told_which_one_is(
    http: httpx.Client, path: str, meant: str
) -> None:
    response = http.post(path, json={})
    assert response.status_code == 404
    assert meant in response.json()["error"]["message"]


def test_the_openai_package_knows_the_errors(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(model="none", messages=[{"role": "user", "content": "x"}])
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as bad:
        client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "x" * 2000}]
        )
    assert bad.value.code == "context_length_exceeded"
    assert bad.value.param == "messages"
    assert "2004 tokens, but the context of 'scripted' holds 1024" in bad.value.message


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/completions", {"prompt": "x" * 2000}, "prompt"),
        ("/v1/completions", {"prompt": "x", "max_tokens": 5000}, "prompt"),
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": "x" * 900}], "max_tokens": 500},
            "messages",
        ),
        ("/v1/responses", {"input": "x" * 2000}, "input"),
    ],
)
def test_a_prompt_that_is_too_long_is_named(
    http: httpx.Client, path: str, body: dict[str, object], param: str
) -> None:
    error = http.post(path, json=body).json()["error"]
    assert (error["code"], error["param"]) == ("context_length_exceeded", param)


@pytest.mark.parametrize(
    ("error", "status", "header"),
    [
        (InvalidArgument("x"), 400, None),
        (PromptTooLong("x"), 400, None),
        (GrammarError("x"), 400, None),
        (Unauthorized("x"), 401, "www-authenticate"),
        (Forbidden("x"), 403, None),
        (ModelNotFound("x"), 404, None),
        (UnknownHandle("x"), 404, None),
        (ProgramCancelled("x"), 409, "x-should-retry"),
        (MailboxClosed("x"), 409, "x-should-retry"),
        (QuotaExceeded("x"), 429, "retry-after"),
        (NeverWithinQuota("x"), 400, None),
        (PoolExhausted("x"), 503, "retry-after"),
        (Draining("x"), 503, "retry-after"),
        (EngineLost("x"), 503, "retry-after"),
        (MailboxFull("x"), 503, "retry-after"),
        (EngineFault("x"), 500, "x-should-retry"),
        (ProgramFailed("x"), 500, "x-should-retry"),
        (ConfigError("x"), 501, "x-should-retry"),
        (QuireError("x"), 500, "x-should-retry"),
    ],
)
def test_every_kind_has_its_status(error: QuireError, status: int, header: str | None) -> None:
    assert status_of(error) == status
    assert body_of(error)["error"]["code"] == error.code
    assert set(headers_of(error)) == ({header} if header else set())


@pytest.mark.parametrize(
    ("error", "is_shown"),
    [(ConfigError("no wasmtime: install it"), False), (QuireError("x"), True)],
)
def test_what_is_not_installed_is_logged_without_the_place_that_missed_it(
    error: QuireError, is_shown: bool, caplog: pytest.LogCaptureFixture
) -> None:
    app = FastAPI()

    @app.get("/")
    async def fails() -> None:
        raise error

    install_handlers(app, ())
    assert TestClient(app).get("/").status_code == status_of(error)
    (logged,) = [one for one in caplog.records if one.name == "quire.server.errors.errors"]
    assert logged.getMessage() == f"request failed: {error.message}"
    assert (logged.exc_info is not None) == is_shown


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"n": 100_000}, "n: Input should be less than or equal to 128, not 100000"),
        ({"temperature": -0.5}, "Input should be greater than or equal to 0, not -0.5"),
        ({"n": True}, "n: Input should be a valid integer, not true"),
        ({"n": 1.5}, "n: Input should be a valid integer, not 1.5"),
        ({"stream": "secret"}, "stream: Input should be a valid boolean, not a string"),
        ({"tools": {"secret": 1}}, "tools: Input should be a valid list, not an object"),
        ({"temprature": 1}, "temprature: no such parameter; did you mean temperature?"),
        ({"x" * 5000: 1}, ": no such parameter; check its spelling or leave it out"),
        (
            {"stream": True, "stream_options": {"usage": True}},
            "stream_options.usage: no such parameter; check its spelling or leave it out",
        ),
        ({"stop": ["a", None]}, "stop[1]: Input should be a valid string, not null"),
    ],
)
def test_a_number_is_repeated_and_of_other_values_the_kind_is_said(
    http: httpx.Client, body: dict[str, Any], said: str
) -> None:
    message = check_shape(http.post(CHAT, json={"messages": HI, **body}))["message"]
    assert message.endswith(said)
    assert "secret" not in message


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/v1/files?limit=0", "limit: Input should be greater than or equal to 1, not 0"),
        ("/v1/files?limit=many", "limit: Input should be a valid integer"),
        ("/v1/responses/resp_1?stream=maybe", "stream: Input should be a valid boolean"),
    ],
)
def test_what_is_wrong_in_a_query_is_said_as_in_a_body(
    http: httpx.Client, path: str, said: str
) -> None:
    assert check_shape(http.get(path))["message"] == said


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("programs?state=failed", "state: no such parameter; check its spelling or leave it out"),
        ("sessions?limits=5", "limits: no such parameter; did you mean limit?"),
        ("sessions?state=idle", "state: no such parameter; there are after, limit"),
        ("programs/changes?sinc=0-0", "sinc: no such parameter; did you mean since?"),
    ],
)
def test_own_routes_refuse_parameters_that_they_do_not_have(
    http: httpx.Client, path: str, said: str
) -> None:
    response = http.get(f"/v1/{path}")
    error = check_shape(response)
    assert (response.status_code, error["message"]) == (400, said)
    assert (error["code"], error["param"]) == ("unknown_parameter", said.partition(":")[0])


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/programs"),
        ("POST", "/v1/sessions"),
        ("POST", "/v1/microserving/prep_recv"),
        ("POST", "/v1/microserving/programs/lost"),
        ("GET", "/v1/microserving/engines"),
    ],
)
def test_own_routes_with_or_without_a_body_refuse_them_alike(
    http: httpx.Client, method: str, path: str
) -> None:
    response = http.request(method, f"{path}?nothing=1", json={})
    error = check_shape(response)
    assert (response.status_code, error["code"], error["param"]) == (
        400, "unknown_parameter", "nothing",
    )  # fmt: skip


def test_a_parameter_that_is_there_twice_is_refused(http: httpx.Client) -> None:
    response = http.get("/v1/sessions?limit=1&limit=2")
    assert check_shape(response)["message"] == "limit: it is there twice; send it once"
    assert response.status_code == 400


@pytest.mark.parametrize("path", ["/v1/models?beta=true", "/v1/files?limit=2&beta=true"])
def test_routes_of_other_apis_take_what_their_clients_add(http: httpx.Client, path: str) -> None:
    assert http.get(path).status_code == 200


def test_a_body_of_few_fields_lists_them(http: httpx.Client) -> None:
    said = check_shape(http.post("/v1/programs", json={"name": "react"}))["message"]
    assert said.startswith("name: no such parameter; there are program, ")
    response = http.post("/v1/programs/prog-1/signal", json={"signal": "cancel", "why": "x"})
    assert "no such parameter; there are signal, message" in check_shape(response)["message"]


class PanicException(BaseException):
    """As a library in Rust raises it."""


@pytest.mark.parametrize(
    ("error", "is_answered"),
    [(KeyError("k"), True), (PanicException("a panic"), True), (SystemExit(1), False)],
)
async def test_what_nobody_expected_is_answered_in_the_usual_shape(
    error: BaseException, is_answered: bool
) -> None:
    sent: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        raise error

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        raise AssertionError

    scope = {"type": "http", "state": {"request_id": "req_1"}, "path": "/"}
    asked = ErrorBoundary(app)(scope, receive, send)
    if not is_answered:
        with pytest.raises(SystemExit):
            await asked
        return
    await asked
    assert sent[0]["status"] == 500
    assert json.loads(sent[1]["body"])["error"]["code"] == "internal_error"


def test_a_message_is_bounded_keeps_its_remedy_and_can_be_said() -> None:
    said = error_body(400, "x" * 10**6 + ": send less", param="p" * 10**6)["error"]
    assert said["message"].startswith("xxx")
    assert said["message"].endswith(" ... " + "x" * 1013 + ": send less")
    assert len(said["message"]) == MAX_MESSAGE_CHARS + len(" ... ")
    assert said["param"] == "p" * 200
    whole = "y" * MAX_MESSAGE_CHARS
    assert error_body(400, whole)["error"]["message"] == whole
    assert error_body(400, "a \ud800", param="\udfff")["error"] == {
        "message": "a \\ud800", "param": "\\udfff", "type": "invalid_request_error", "code": None,
    }  # fmt: skip
