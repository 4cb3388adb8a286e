"""Tools: schemas from hints, checked arguments, errors that the model reads."""

from __future__ import annotations

import asyncio
import functools
import logging
from enum import Enum
from typing import Annotated, Any, Literal

import pytest

from quire.core.errors import InvalidArgument
from quire.programs.chat import Call, ChatTemplate
from quire.programs.sdk import Tool, Toolbox
from quire.testing.tokenizer import CHAT_TEMPLATE


class Unit(Enum):
    CELSIUS = "celsius"
    FAHRENHEIT = "fahrenheit"


def weather(
    city: Annotated[str, "where"],
    unit: Literal["celsius", "fahrenheit"] = "celsius",
    days: int = 1,
    tags: list[str] | None = None,
) -> dict[str, Any]:
    """The weather of a city.

    More that the model need not know.
    """
    return {"city": city, "unit": unit, "days": days, "tags": tags}


async def add(a: float, b: float) -> float:
    """Add."""
    return a + b


def fail(unit: Unit = Unit.CELSIUS) -> str:
    """Fail."""
    raise ValueError(f"no {unit.value}")


def test_the_schema_comes_from_the_hints() -> None:
    assert Tool.of(weather).schema() == {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "The weather of a city.",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string", "description": "where"},
                    "unit": {"enum": ["celsius", "fahrenheit"], "default": "celsius"},
                    "days": {"type": "integer", "default": 1},
                    "tags": {
                        "anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "null"}],
                        "default": None,
                    },
                },
                "required": ["city"],
                "additionalProperties": False,
            },
        },
    }
    nested = Tool.of(fail).parameters
    assert nested["$defs"]["Unit"]["enum"] == ["celsius", "fahrenheit"]


async def test_calls() -> None:
    tool = Tool.of(weather)
    assert await tool.call('{"city": "Oslo", "days": 2}') == (
        '{"city": "Oslo", "unit": "celsius", "days": 2, "tags": null}'
    )
    assert await Tool.of(add).call('{"a": 1, "b": 2.5}') == "3.5"
    for bad in ("{}", '{"city": 1}', '{"city": "x", "more": 1}', '{"city": "x", "unit": "k"}', "["):
        with pytest.raises(InvalidArgument, match="weather"):
            await tool.call(bad)


async def test_an_async_function_in_a_plain_wrapper_is_awaited() -> None:
    @functools.wraps(add)
    def wrapped(*args: Any, **keywords: Any) -> Any:
        return add(*args, **keywords)

    assert await Tool.of(wrapped).call('{"a": 1, "b": 2}') == "3.0"


async def test_a_fault_of_a_tool_is_logged_and_one_of_the_model_is_not(
    caplog: pytest.LogCaptureFixture,
) -> None:
    tools = Toolbox([fail])
    with caplog.at_level(logging.INFO, "quire.programs.sdk.tools"):
        await tools.call(Call("1", "fail", '{"unit": 3}'))
        assert not caplog.records
        await tools.call(Call("2", "fail", "{}"))
    (record,) = caplog.records
    assert record.getMessage() == "tool 'fail' failed"
    assert "no celsius" in caplog.text


async def test_a_long_result_is_cut_and_says_so() -> None:
    """A model that does not know takes what is left for all there is."""

    def long(length: int) -> str:
        return "x" * length

    tool = Tool.of(long)
    assert await tool.call('{"length": 16384}') == "x" * 16_384
    result = await tool.call('{"length": 20000}')
    assert result == "x" * 16_384 + "...\n[cut: the first 16384 of 20000 characters]"


def test_what_has_no_schema_is_refused() -> None:
    def no_hint(a) -> None:  # type: ignore[no-untyped-def]
        """."""

    def star(*args: int) -> None:
        """."""

    def odd(a: asyncio.Event) -> None:
        """."""

    for function, reason in ((no_hint, "no type hint"), (star, r"\*args"), (odd, "odd")):
        with pytest.raises(InvalidArgument, match=reason):
            Tool.of(function)
    with pytest.raises(InvalidArgument, match="two tools"):
        Toolbox([add, add])


async def test_a_toolbox_tells_the_model_what_went_wrong() -> None:
    box = Toolbox([weather, add, fail])
    calls = [
        Call("1", "add", '{"a": 1, "b": 1}'),
        Call("2", "fail", "{}"),
        Call("3", "fly", "{}"),
        Call("4", "add", '{"a": "x"}'),
    ]
    results = await box.call_all(calls)
    assert results[:3] == [
        "2.0",
        "error: no celsius",
        "error: no tool 'fly'; the tools are weather, add, fail",
    ]
    assert results[3].startswith("error: add: ")


def test_templates_can_use_the_schemas() -> None:
    text = ChatTemplate(CHAT_TEMPLATE).render(
        [{"role": "user", "content": "x"}], tools=Toolbox([add]).schemas()
    )
    assert '"name": "add"' in text


def local_hint() -> Any:
    """A tool whose hint names what stands nowhere."""

    def tool(n: Nowhere) -> int:  # type: ignore[name-defined] # noqa: F821
        """A tool."""
        return 0

    return tool


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("get_weather", "'get_weather' is not a function"),
        (functools.partial(add, b=1), "give a function, or Tool.of"),
        (local_hint(), "tool 'tool': its type hints cannot be read: name 'Nowhere'"),
    ],
)
def test_what_is_no_tool_is_refused(wrong: Any, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        Toolbox([wrong])


async def test_a_part_of_a_function_is_a_tool_under_a_name() -> None:
    tool = Tool.of(functools.partial(add, b=1.0), name="next_one")
    assert tool.description == "Add."
    assert await tool.call('{"a": 2}') == "3.0"
