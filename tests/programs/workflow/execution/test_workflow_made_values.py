"""What functions give is bounded and of the promised type before anything else works on it."""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping
from typing import Any

import pytest

from quire.core.errors import InvalidArgument, ProgramFailed
from quire.programs.workflow import App, Engine, Growth, Node
from quire.programs.workflow.execution import made_values
from quire.programs.workflow.execution.made_values import (
    MAX_MADE_BYTES,
    MAX_MADE_LEVELS,
    check_value,
)
from quire.programs.workflow.graphs.values import ValueType
from quire.programs.workflow.query import Query
from quire.testing import LocalNode

MOST = 1000


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(made_values, "MAX_MADE_BYTES", MOST)
    monkeypatch.setattr(made_values, "FEW_BYTES", 100)


def deep(levels: int) -> Any:
    value: Any = "bottom"
    for level in range(levels):
        value = [value] if level % 2 else {"in": value}
    return value


def endless() -> Any:
    value: list[Any] = []
    value += [value, value, "a"]
    return value


TOO_LARGE = "returned more than 1000 bytes .*: return less, or write it to a file"


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(
    ("kind", "most", "more"),
    [
        ("text", "a" * MOST, "a" * (MOST + 1)),
        ("object", "ä" * MOST, "ä" * (MOST + 1)),
        ("object", b"a" * MOST, b"a" * (MOST + 1)),
        ("texts", ["a" * (MOST - 8)], ["a" * (MOST - 7)]),
        ("texts", ["a"] * (MOST // 9), ["a"] * (MOST // 9 + 1)),
        ("object", [1] * (MOST // 8), [1] * (MOST // 8 + 1)),
        ("object", {"a" * (MOST - 16): 1}, {"a" * (MOST - 15): 1}),
        ("object", {1: "a" * (MOST - 16)}, {1: "a" * (MOST - 15)}),
        ("vectors", [[1.0] * (MOST // 8 - 1)], [[1.0] * (MOST // 8)]),
    ],
)
def test_a_value_has_so_many_bytes_and_no_more(kind: str, most: Any, more: Any) -> None:
    assert check_value("call", "f", ValueType(kind), most) is most
    with pytest.raises(InvalidArgument, match=f"call: f {TOO_LARGE}") as caught:
        check_value("call", "f", ValueType(kind), more)
    assert caught.value.details["param"] == "call"


def test_a_value_is_not_deeper_than_what_can_be_kept() -> None:
    check_value("call", "f", ValueType.OBJECT, deep(MAX_MADE_LEVELS))
    for value in (deep(MAX_MADE_LEVELS + 1), deep(100_000), endless()):
        with pytest.raises(InvalidArgument, match="on more than 64 levels: return a flatter value"):
            check_value("call", "f", ValueType.OBJECT, value)


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        ("text", 1, r"1 \(int\), not text: return a value of the declared type, or"),
        ("text", ["a"], r".* \(list\), not text:"),
        ("text", "a\ud800", "half of a surrogate pair"),
        ("texts", "a", r".* \(str\), not texts:"),
        ("texts", ("a",), r".* \(tuple\), not texts:"),
        ("texts", ["a", 1], "a list whose element 1 is int: return texts alone"),
        ("texts", [None], "a list whose element 0 is NoneType"),
        ("boolean", 1, r".* \(int\), not boolean:"),
        ("vectors", [1.0], "vectors of which number 0 is 1.0: return lists of numbers"),
        ("vectors", [[1.0], ["a"]], r"vectors of which number 1 is \['a'\]"),
        ("vectors", [[1.0], [1.0, 2.0]], r"vectors of which number 1 is \[1.0, 2.0\]"),
        ("vectors", [[True]], r"vectors of which number 0 is \[True\]"),
        ("vectors", [[math.nan]], r"vectors of which number 0 is \[nan\]"),
        ("vectors", [[]], r"vectors of which number 0 is \[\]"),
        ("documents", "a", r".* \(str\), not documents:"),
        ("documents", ["a"], r"what is no list of documents: documents \[0\] is 'a': give"),
        (
            "documents",
            [{"name": "a.pdf", "base64": "JQ=="}],
            "what is no list .* whose text is not read yet",
        ),
    ],
)
def test_a_value_is_of_the_type_that_its_component_promises(
    kind: str, value: Any, message: str
) -> None:
    with pytest.raises(InvalidArgument, match=f"call: f returned {message}"):
        check_value("call", "f", ValueType(kind), value)


def calling(value: Any, kind: str = "object") -> App:
    app = App("app", [Engine("tool", config={"functions": {"f": lambda q: value}})])
    config = {"function": "f"}
    app.update_template([Node("tool", {"q": "text"}, {"a": kind}, config=config, name="call")])
    return app


async def answer(app: App) -> Mapping[str, Any]:
    asked = Query(app, {"q": "x"})
    asked.prepare()
    async with LocalNode() as node:
        answer: Mapping[str, Any] = await node.run(asked.program())
        return answer


async def test_the_error_names_the_function_and_the_limit() -> None:
    with pytest.raises(ProgramFailed) as caught:
        await answer(calling("a" * (MAX_MADE_BYTES + 1), "text"))
    text = "call: the function 'f' returned more than 16777216 bytes (one for each character, "
    assert text in caught.value.message


@pytest.mark.usefixtures("small")
async def test_a_large_value_is_checked_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = list[int]()

    def noted(*given: Any) -> Any:
        threads.append(threading.get_ident())
        return check_value(*given)

    monkeypatch.setattr(made_values, "check_value", noted)
    assert await answer(calling("a" * 100, "text")) == {"a": "a" * 100}
    assert threads.pop() == threading.get_ident()
    assert await answer(calling("a" * 101, "text")) == {"a": "a" * 101}
    assert threads.pop() != threading.get_ident()


@pytest.mark.parametrize(
    ("value", "named"),
    [
        (object(), "Object of type object is not JSON serializable"),
        ({"a": {1}}, "Object of type set"),
        ({(1,): "a"}, "keys must be str"),
        ([math.inf], "Out of range float values"),
        (math.nan, "Out of range float values"),
    ],
)
async def test_a_result_of_the_query_is_json(value: Any, named: str) -> None:
    with pytest.raises(
        ProgramFailed, match=rf"call: its 'a' is a result of the query and no JSON \({named}"
    ):
        await answer(calling(value))


async def test_tools_may_pass_one_another_what_is_no_json() -> None:
    functions = {"f": lambda q: {1: {q}}, "g": lambda a: repr(a)}
    app = App("app", [Engine("tool", config={"functions": functions})])
    app.update_template(
        [
            Node("tool", {"q": "text"}, {"a": "object"}, config={"function": "f"}, name="first"),
            Node("tool", {"a": "object"}, {"b": "text"}, config={"function": "g"}, name="second"),
        ]
    )
    assert await answer(app) == {"b": "{1: {'x'}}"}


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("returned", ["output", "value"])
async def test_what_a_growth_gives_is_bounded_too(returned: str) -> None:
    def grow(q: str) -> Any:
        text = "a" * (MOST + 1)
        if returned == "output":
            return text
        again = Node("tool", {"long": "text"}, {"a": "text"}, config={"function": "f"}, name="t")
        return Growth([again], {"long": text})

    engines = [
        Engine("growth", config={"functions": {"grow": grow}}),
        Engine("tool", config={"functions": {"f": lambda long: long}}),
    ]
    app = App("app", engines)
    config = {"function": "grow"}
    app.update_template([Node("growth", {"q": "text"}, {"a": "text"}, config=config, name="g")])
    who = "its function" if returned == "output" else "its function, as the value 'long',"
    with pytest.raises(ProgramFailed, match=f"g: {who} {TOO_LARGE}"):
        await answer(app)
