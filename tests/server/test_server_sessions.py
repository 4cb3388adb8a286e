"""Calls join the session that they belong to, named or inferred, and end it when asked."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from request_log import RequestLines
from scripted_server import RunningServer

from quire.control import Controller

CHAT = "/v1/chat/completions"


def ask(http: httpx.Client, messages: list[dict[str, Any]], **headers: str) -> httpx.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    response = http.post(CHAT, json={"messages": messages}, headers=named)
    assert response.status_code == 200, response.text
    return response


def program_of(response: httpx.Response) -> str:
    return str(response.headers["x-quire-program-id"])


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def test_a_named_session_is_one_program(http: httpx.Client) -> None:
    one = ask(http, [user("say a")], x_session_id="named")
    two = ask(http, [user("say b")], x_session_id="named")
    other = ask(http, [user("say b")], x_session_id="other")
    assert program_of(one) == program_of(two) != program_of(other)
    (session,) = [
        entry for entry in http.get("/v1/programs").json()["data"] if entry["client_id"] == "named"
    ]
    assert session["id"] == program_of(one)
    assert session["form"] == "session"
    assert session["process"]["num_generated_tokens"] == 4


def test_the_body_names_a_session_too(http: httpx.Client) -> None:
    body = {"messages": [user("say a")], "session_id": "in-body"}
    one = http.post(CHAT, json=body)
    two = ask(http, [user("say b")], x_session_id="in-body")
    assert program_of(one) == program_of(two)


def test_a_conversation_that_goes_on_is_recognised(http: httpx.Client) -> None:
    history = [user("say infer me"), {"role": "assistant", "content": "infer me"}]
    first = ask(http, history[:1])
    second = ask(http, [*history, user("say more")])
    assert program_of(first) == program_of(second)
    made_up = ask(http, [user("say x"), {"role": "assistant", "content": "y"}, user("say z")])
    assert program_of(made_up) != program_of(first)


def test_a_tool_loop_is_recognised(http: httpx.Client) -> None:
    tools = [{"type": "function", "function": {"name": "look"}}]
    messages = [user('call look {"at": "the  sea"}')]
    first = http.post(CHAT, json={"messages": messages, "tools": tools})
    message = first.json()["choices"][0]["message"]
    (call,) = message["tool_calls"]
    call["function"]["arguments"] = '{ "at" : "the  sea" }'  # clients write JSON anew
    messages += [message, {"role": "tool", "tool_call_id": call["id"], "content": "blue"}]
    second = http.post(CHAT, json={"messages": messages, "tools": tools})
    assert program_of(first) == program_of(second)


def test_streams_are_remembered_too(http: httpx.Client) -> None:
    with http.stream("POST", CHAT, json={"messages": [user("say in parts")], "stream": True}) as s:
        s.read()
    history = [user("say in parts"), {"role": "assistant", "content": "in parts"}]
    assert program_of(ask(http, [*history, user("say on")])) == program_of(s)


def test_final_ends_the_session(http: httpx.Client) -> None:
    one = ask(http, [user("say a")], x_session_id="ending", x_quire_final="true")
    two = ask(http, [user("say b")], x_session_id="ending")
    assert program_of(one) != program_of(two)


def test_control_knows_which_thread_an_agent_was_forked_from(
    http: httpx.Client, server: RunningServer
) -> None:
    claude = {"x-claude-code-session-id": "forking"}
    agent = {**claude, "x-claude-code-agent-id": "one"}
    forked = {**claude, "x-claude-code-agent-id": "two", "x-claude-code-parent-agent-id": "one"}
    for headers in (agent, forked):
        http.post(CHAT, json={"messages": [user("say a")]}, headers=headers).raise_for_status()

    def parents(controller: Controller) -> dict[int, int | None]:
        programs = controller._table.programs()
        (program,) = (one for one in programs if one.client_id == "forking")
        return {thread: figures.parent for thread, figures in program.threads._figures.items()}

    found = server.node._parts.control.call(parents)
    one, two = found
    assert found == {one: None, two: one}


def test_identity_stands_in_the_request_line(
    http: httpx.Client, server: RunningServer, request_lines: RequestLines
) -> None:
    body = {"messages": [user("say a")], "priority": 4, "prompt_cache_key": "hint"}
    http.post(
        CHAT,
        json=body,
        headers={
            "x-claude-code-session-id": "s",
            "x-claude-code-agent-id": "agent",
            "x-request-id": "mine",
        },
    )
    line = request_lines.next()
    expected = {
        "event": "request",
        "outcome": "finished",
        "request_id": "mine",
        "route": CHAT,
        "tenant": "default",
        "model": "scripted",
        "client_id": "s",
        "thread": "agent",
        "hint": "hint",
        "priority": -4,
        "completion_tokens": 2,
        "finish_reasons": {"stop": 1},
        "error": None,
    }
    assert {name: line[name] for name in expected} == expected


@pytest.mark.parametrize("header", ["x-session-id", "x-quire-program-id"])
def test_bad_names_are_400(http: httpx.Client, header: str) -> None:
    response = http.post(CHAT, json={"messages": [user("x")]}, headers={header: "x" * 257})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == header
