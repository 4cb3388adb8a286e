"""Which grammar a chat request asks for; checked by what the grammar lets through."""

from __future__ import annotations

from typing import Any

import llguidance
import pytest

from quire.core.decoding import GrammarSpec
from quire.server.chat.constraint import chat_grammar
from quire.server.schemas.chat import ChatCompletionRequest

TREE: dict[str, Any] = {
    "type": "object",
    "properties": {
        "value": {"$ref": "#/$defs/number"},
        "next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]},
    },
    "required": ["value"],
    "$defs": {"number": {"type": "integer"}},
}
TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": "grow", "parameters": TREE}},
    {"type": "function", "function": {"name": "stop"}},
]
GROW = '<tool_call>{"name": "grow", "arguments": {"value": 1, "next": {"value": 2}}}</tool_call>'
STOP = '<tool_call>{"name": "stop", "arguments": {}}</tool_call>'
NAMED = {"type": "function", "function": {"name": "stop"}}
SCHEMA = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
FORMAT = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}


def grammar(**fields: Any) -> GrammarSpec | None:
    request = ChatCompletionRequest.model_validate(
        {"messages": [{"role": "user", "content": "x"}], **fields}
    )
    return chat_grammar(request)[0]


def lets_through(spec: GrammarSpec | None, text: str) -> bool:
    assert spec is not None
    compilers = {
        "lark": llguidance.LLMatcher.grammar_from_lark,
        "json_schema": llguidance.LLMatcher.grammar_from_json_schema,
        "regex": llguidance.LLMatcher.grammar_from_regex,
    }
    matcher = llguidance.LLMatcher(
        llguidance.LLTokenizer("byte"), compilers[spec.kind](spec.source)
    )
    assert not matcher.is_error(), matcher.get_error()
    raw = list(text.encode())
    return bool(matcher.try_consume_tokens(raw) == len(raw) and matcher.is_accepting())


@pytest.mark.parametrize(
    ("text", "good"),
    [
        (GROW, True),
        (STOP, True),
        (f"{GROW}\n{STOP}", True),
        ("words", False),
        ('{"x": 1}', False),
        (GROW.replace("1", '"one"'), False),
        (GROW.replace("grow", "fly"), False),
        (STOP.replace("{}", '{"a": 1}'), False),
        (GROW.replace('"value": 1', '"value": 1, "extra": 2'), False),
    ],
)
def test_required(text: str, good: bool) -> None:
    assert lets_through(grammar(tools=TOOLS, tool_choice="required"), text) is good


@pytest.mark.parametrize(("text", "good"), [(STOP, True), (GROW, False), (STOP * 2, False)])
def test_named(text: str, good: bool) -> None:
    assert lets_through(grammar(tools=TOOLS, tool_choice=NAMED), text) is good


def test_required_without_parallel_calls_is_one_call() -> None:
    spec = grammar(tools=TOOLS, tool_choice="required", parallel_tool_calls=False)
    assert lets_through(spec, GROW)
    assert not lets_through(spec, f"{GROW}\n{STOP}")


def test_an_object_that_says_so_stays_open() -> None:
    parameters = {"type": "object", "properties": {}, "additionalProperties": True}
    tool = {"type": "function", "function": {"name": "any", "parameters": parameters}}
    spec = grammar(tools=[tool], tool_choice="required")
    assert lets_through(spec, '<tool_call>{"name": "any", "arguments": {"a": [1]}}</tool_call>')


def test_a_format_with_tools_allows_either() -> None:
    spec = grammar(tools=TOOLS, response_format=FORMAT)
    assert lets_through(spec, '{"x": 1}')
    assert lets_through(spec, GROW)
    assert not lets_through(spec, "words")


def test_an_object_may_have_a_schema() -> None:
    """As llama.cpp and Together take it."""
    asked = grammar(response_format={"type": "json_object", "schema": SCHEMA})
    assert asked == grammar(
        response_format={
            "type": "json_schema",
            "json_schema": {"name": "n", "schema": SCHEMA, "strict": True},
        }
    )


def test_a_format_with_tools_that_may_not_be_called() -> None:
    spec = grammar(tools=TOOLS, tool_choice="none", response_format=FORMAT)
    assert lets_through(spec, '{"x": 1}')
    assert not lets_through(spec, GROW)


@pytest.mark.parametrize("fields", [{}, {"tools": TOOLS}, {"response_format": {"type": "text"}}])
def test_nothing_asked_binds_nothing(fields: dict[str, Any]) -> None:
    assert grammar(**fields) is None


def test_strict_refuses_what_it_cannot_enforce_and_lenient_leaves_it_out() -> None:
    schema = {**SCHEMA, "not": {"required": ["y"]}}

    def spec(strict: bool) -> GrammarSpec:
        inner = {"name": "n", "schema": schema, "strict": strict}
        found = grammar(response_format={"type": "json_schema", "json_schema": inner})
        assert found is not None
        return found

    assert lets_through(spec(False), '{"x": 1}')
    compiled = llguidance.LLMatcher.grammar_from_json_schema(spec(True).source)
    assert llguidance.LLMatcher.validate_grammar(compiled)


@pytest.mark.parametrize("text", ["a", 'b"\n', "\\", "ü"])
def test_choices_are_literal(text: str) -> None:
    spec = grammar(structured_outputs={"choice": ["a", 'b"\n', "\\", "ü"]})
    assert lets_through(spec, text)
    assert not lets_through(spec, f"{text}x")
