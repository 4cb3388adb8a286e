"""Chats with models that write tool calls and reasoning in other forms than Hermes'."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from scripted_server import RunningServer, running_server

from quire.testing.tokenizer import CHAT_TEMPLATE

TOOLS = [{"type": "function", "function": {"name": name}} for name in ("time", "weather")]
ARGS = '{"city": "Bonn"}'
TEMPLATES = {
    "llama": CHAT_TEMPLATE.replace("<tool_call>", "") + '{# <|start_header_id|> "parameters" #}',
    "mistral": CHAT_TEMPLATE.replace("<tool_call>", "[TOOL_CALLS]"),
    "harmony": CHAT_TEMPLATE.replace("<tool_call>", "") + "{# <|channel|> <|message|> #}",
}
ANSWERS = {
    "llama": f'{{"name": "weather", "parameters": {ARGS}}}',
    "mistral": f"[TOOL_CALLS]weather[ARGS]{ARGS}",
    "harmony": "<|channel|>analysis<|message|>Well.<|start|>assistant<|channel|>commentary"
    f" to=functions.weather<|message|>{ARGS}",
}


def ask(server: RunningServer, text: str, **fields: Any) -> dict[str, Any]:
    body = {"messages": [{"role": "user", "content": f"say {text}"}], **fields}
    with httpx.Client(base_url=server.url, timeout=60) as http:
        response = http.post("/v1/chat/completions", json=body)
    assert response.status_code == 200, response.text
    choice: dict[str, Any] = response.json()["choices"][0]
    return choice


def deltas(server: RunningServer, text: str, **fields: Any) -> list[dict[str, Any]]:
    body = {"messages": [{"role": "user", "content": f"say {text}"}], "stream": True, **fields}
    with httpx.Client(base_url=server.url, timeout=60) as http:
        lines = http.post("/v1/chat/completions", json=body).text.splitlines()
    events = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    return [event["choices"][0]["delta"] for event in events]


@pytest.mark.parametrize("dialect", list(TEMPLATES))
def test_calls_are_read_in_the_form_of_the_template(dialect: str) -> None:
    with running_server(template=TEMPLATES[dialect]) as server:
        choice = ask(server, ANSWERS[dialect], tools=TOOLS)
        assert choice["finish_reason"] == "tool_calls"
        (call,) = choice["message"]["tool_calls"]
        assert call["function"] == {"name": "weather", "arguments": ARGS}
        assert choice["message"]["content"] is None
        assert choice["message"].get("reasoning") == ("Well." if dialect == "harmony" else None)

        parts = deltas(server, ANSWERS[dialect], tools=TOOLS)
        calls = [call for part in parts for call in part.get("tool_calls", ())]
        assert calls[0]["function"]["name"] == "weather"
        assert "".join(call["function"]["arguments"] for call in calls) == ARGS

        assert ask(server, "Hello", tools=TOOLS)["message"]["content"] == "Hello"


@pytest.mark.parametrize("dialect", list(TEMPLATES))
def test_a_forced_call_works_whatever_the_form(dialect: str) -> None:
    with running_server(template=TEMPLATES[dialect]) as server:
        text = '<tool_call>{"name": "time", "arguments": {}}</tool_call>'
        choice = ask(server, text, tools=TOOLS, tool_choice="required")
    assert [call["function"]["name"] for call in choice["message"]["tool_calls"]] == ["time"]


def test_without_tools_only_channels_are_read() -> None:
    with running_server(template=TEMPLATES["mistral"]) as server:
        assert ask(server, ANSWERS["mistral"])["message"]["content"] == ANSWERS["mistral"]
    with running_server(template=TEMPLATES["harmony"]) as server:
        text = "<|channel|>analysis<|message|>a<|start|><|channel|>final<|message|>b"
        message = ask(server, text)["message"]
        assert (message["content"], message["reasoning"]) == ("b", "a")
