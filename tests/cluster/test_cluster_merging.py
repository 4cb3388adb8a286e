"""The process tables of several nodes as one answer. Pure."""

from __future__ import annotations

from typing import Any

import pytest

from quire.cluster.requests.merging import ReaderPlace, has_to_begin_anew, merged, read_place
from quire.core.errors import InvalidArgument

Row = dict[str, Any]


def program(process: int, parent: int | None = None) -> Row:
    return {"process": process, "parent": parent, "engines": ["m"], "id": f"prog-{process}"}


def answer(*programs: Row, next: str = "1-1", **fields: Any) -> Row:
    node = {"ready": True, "detail": "", "policy": "fcfs", "time": 5.0, "uptime_s": 3.0}
    told: Row = {"next": next, "whole": False, "more": False, "ended": []}
    told |= {"programs": list(programs), "engines": [{"engine": "m", "state": "ready"}]}
    return {**told, "node": node, **fields}


def test_rows_of_two_nodes_are_told_apart() -> None:
    told = merged(
        ReaderPlace(),
        {"a": answer(program(1), program(2, parent=1)), "b": answer(program(1))},
        {},
        now_s=9.0,
    )
    assert told["whole"]
    rows = told["programs"]
    assert len({row["process"] for row in rows}) == 3
    assert [row["node"] for row in rows] == ["a", "a", "b"]
    assert rows[1]["parent"] == rows[0]["process"]
    assert [row["engines"] for row in rows] == [["a/m"], ["a/m"], ["b/m"]]
    assert [engine["engine"] for engine in told["engines"]] == ["a/m", "b/m"]
    assert all(row["process"] < 2**53 for row in rows)
    assert told["node"] == {
        "ready": True, "detail": "", "policy": "fcfs", "time": 9.0, "uptime_s": 3.0,
    }  # fmt: skip


def test_a_row_keeps_its_name_while_nodes_come() -> None:
    first = merged(ReaderPlace(), {"b": answer(program(7), next="3-9")}, {}, 0.0)
    place = read_place(first["next"])
    assert (place.since("b"), place.since("a")) == ("3-9", "")
    answers = {
        "a": answer(program(7), whole=True),
        "b": answer(ended=[7], next="3-10", more=True),
    }
    assert not has_to_begin_anew(place, answers)
    second = merged(place, answers, {}, 0.0)
    assert not second["whole"]
    assert second["more"]
    assert second["ended"] == [first["programs"][0]["process"]]
    assert second["programs"][0]["process"] not in second["ended"]


def test_a_node_that_is_gone_or_began_anew_is_told_from_the_beginning() -> None:
    place = read_place(merged(ReaderPlace(), {"a": answer(), "b": answer()}, {}, 0.0)["next"])
    assert has_to_begin_anew(place, {"a": answer()})
    assert has_to_begin_anew(place, {"a": answer(), "b": answer(whole=True, next="2-0")})
    assert not has_to_begin_anew(place, {"a": answer(), "b": answer(whole=True)})
    assert not has_to_begin_anew(place, {"a": answer(), "b": answer()})


def test_what_is_not_well_is_named() -> None:
    node = {"ready": False, "detail": "it loads", "policy": "quire", "time": 1.0, "uptime_s": 9.0}
    told = merged(ReaderPlace(), {"a": answer(), "b": answer(node=node)}, {"c": "it is dead"}, 0.0)
    assert not told["node"]["ready"]
    assert told["node"]["detail"] == "b: it loads; c: it is dead"
    assert told["node"]["policy"] == "fcfs, quire"


@pytest.mark.parametrize("text", ["1-1", "###", "é", "gaFh", "A" * 1000])
def test_a_place_that_nobody_gave_out_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument, match="since"):
        read_place(text)
