"""Values come back as they were, or are refused by name."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.core.errors import InvalidArgument
from quire.programs.workflow import Growth, Node
from quire.programs.workflow.durable.growth_bytes import growth_bytes, growth_of
from quire.programs.workflow.durable.stored_values import restored, stored
from quire.programs.workflow.graphs.values import ValueType

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@given(JSON)
def test_what_json_has_comes_back(value: Any) -> None:
    assert restored(stored("tool", {"out": ValueType.OBJECT}, {"out": value})) == {"out": value}


@given(st.integers(1, 5), st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1))
def test_vectors_come_back_to_the_last_digit(num: int, row: list[float]) -> None:
    rows = [row] * num
    content = stored("embed", {"out": ValueType.VECTORS}, {"out": rows})
    assert restored(content) == {"out": rows}


def test_vectors_of_an_encoder_take_four_bytes_a_number() -> None:
    rows = np.random.default_rng(0).normal(size=(50, 384)).astype(np.float32).tolist()
    content = stored("embed", {"out": ValueType.VECTORS}, {"out": rows})
    assert restored(content) == {"out": rows}
    assert len(content) < 50 * 384 * 4 + 100


@pytest.mark.parametrize("rows", [[], [[]], [[1.0], [1.0, 2.0]], [[1, 2]]])
def test_other_vectors_come_back_too(rows: Any) -> None:
    (found,) = restored(stored("f", {"out": ValueType.VECTORS}, {"out": rows})).values()
    assert repr(found) == repr(rows)


def test_a_state_is_not_kept() -> None:
    kinds = {"out": ValueType.TEXTS, "state": ValueType.STATE}
    assert restored(stored("ask", kinds, {"out": ["a"], "state": object()})) == {"out": ["a"]}


def deep(levels: int) -> Any:
    value: Any = []
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("value", "named"),
    [
        ({1: "a"}, "the key 1"),
        ([("a",)], "a tuple"),
        ({"a": {"b": object()}}, "a object"),
        (b"bytes", "a bytes"),
        (np.float64(1.5), "a float64"),
        (deep(80), "more than 64 levels"),
    ],
)
def test_what_would_come_back_as_something_else_is_refused(value: Any, named: str) -> None:
    with pytest.raises(InvalidArgument, match=f"tool: its 'out' has {named}, which cannot be kept"):
        stored("tool", {"out": ValueType.OBJECT}, {"out": value})


def test_numbers_without_an_end_come_back() -> None:
    (found,) = restored(stored("f", {"out": ValueType.OBJECT}, {"out": [math.inf]})).values()
    assert found == [math.inf]


def test_a_growth_comes_back() -> None:
    one = Node("llm", {"q": "text"}, {"a": "texts"}, "splittable", {"prompt": "{q}"}, name="one")
    two = Node("tool", {"a": "texts"}, {"b": "object"}, None, {"effects": ["x"]}, name="two",
               when="go")  # fmt: skip
    one >> two
    found = growth_of(growth_bytes("grow", Growth([one, two], {"q": "\ud800", "go": True})))
    assert found.values == {"q": "\ud800", "go": True}
    shapes = [
        [(n.name, n.engine, n.inputs, n.outputs, n.annotation, dict(n.config), n.when,
          [later.name for later in n.before]) for n in nodes]
        for nodes in ([one, two], found.nodes)
    ]  # fmt: skip
    assert shapes[0] == shapes[1]
    with pytest.raises(InvalidArgument, match="grow: its 'values' has a object"):
        growth_bytes("grow", Growth([one], {"q": object()}))
