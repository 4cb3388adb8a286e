"""Joins the process tables of many nodes: the answer of a router to ``GET /v1/programs/changes``.

Owns how rows are named: a node's ``process`` gets the node's slot in its upper bits, engines and
programs get the node's name. Pure, and nothing is kept between two answers: how far each node was
read, and its slot, are part of ``next``, so that any router can go on where another has stopped.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from quire.core.errors import InvalidArgument

_SLOT = 1 << 32
"""A node has fewer processes. With the slot added, the numbers are still exact in JavaScript."""

_MAX_SLOTS = 1 << 20
_MAX_CHARS = 1 << 18

Row = dict[str, Any]


class _Read(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """What one node last answered. ``since`` is the position from which the next read goes on: the
    answer's ``next``."""

    slot: int
    since: str


class _Program(msgspec.Struct):
    id: str | None
    process: int
    parent: int | None
    engines: list[str]


class _Engine(msgspec.Struct):
    engine: str


class _Node(msgspec.Struct):
    ready: bool
    detail: str
    policy: str
    uptime_s: float


class _Changes(msgspec.Struct):
    """What is read of a node's answer; all else is passed on."""

    next: str
    whole: bool
    more: bool
    programs: list[_Program]
    ended: list[int]
    engines: list[_Engine]
    node: _Node


def is_told(answer: Row) -> bool:
    """Return whether ``answer`` has what ``merged`` reads: one of another release may not."""
    try:
        msgspec.convert(answer, _Changes)
    except msgspec.ValidationError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class ReaderPlace:
    """How far a reader has read the changes of each node, by the node's name."""

    nodes: Mapping[str, _Read] = field(default_factory=dict)

    def since(self, node: str) -> str:
        """Return the ``since`` with which to ask the node; empty: from the beginning."""
        read = self.nodes.get(node)
        return "" if read is None else read.since


def read_place(text: str) -> ReaderPlace:
    """Return the place that ``text`` encodes, the ``next`` of an earlier answer.

    Raises:
        InvalidArgument: it is not the ``next`` of a router's answer.
    """
    if not text:
        return ReaderPlace()
    try:
        raw = urlsafe_b64decode(text[:_MAX_CHARS].encode("ascii"))
        nodes = msgspec.msgpack.decode(raw, type=dict[str, _Read])
    except (ValueError, msgspec.MsgspecError) as exc:
        raise InvalidArgument(
            f"since (or Last-Event-ID) is {text[:64]!a}: send the 'next' of an earlier answer of a "
            "router, or leave it out",
            param="since",
        ) from exc
    return ReaderPlace(nodes)


def has_to_begin_anew(place: ReaderPlace, answers: Mapping[str, Row]) -> bool:
    """Return whether a node is gone, or has forgotten what it sent. Which rows were that node's is
    not known, so all rows have to be sent again."""
    return any(
        name not in answers
        # while its table is empty, every answer of a node is whole
        or (answers[name]["whole"] and answers[name]["next"] != read.since)
        for name, read in place.nodes.items()
    )


def merged(
    place: ReaderPlace, answers: Mapping[str, Row], missing: Mapping[str, str], now_s: float
) -> Row:
    """Return the answer for a reader at ``place``. ``answers``: the answers of nodes, each with the
    changes after ``place``; ``missing``: for each other node, why it has not answered. ``now_s``:
    Unix time."""
    reads: dict[str, _Read] = {}
    programs: list[Row] = []
    ended: list[int] = []
    engines: list[Row] = []
    free = iter(sorted(set(range(len(answers) + len(place.nodes))) - _slots(place)))
    unready = dict(missing)
    for name, answer in answers.items():
        slot = place.nodes[name].slot if name in place.nodes else next(free)
        reads[name] = _Read(slot, answer["next"])
        base = slot % _MAX_SLOTS * _SLOT
        programs += (_program(row, name, base) for row in answer["programs"])
        ended += (base + process for process in answer["ended"])
        engines += ({**row, "engine": f"{name}/{row['engine']}"} for row in answer["engines"])
        if not answer["node"]["ready"]:
            unready[name] = answer["node"]["detail"]
    nodes = [answer["node"] for answer in answers.values()]
    return {
        "object": "program.changes",
        "next": urlsafe_b64encode(msgspec.msgpack.encode(reads)).decode(),
        "whole": not place.nodes,
        "more": any(answer["more"] for answer in answers.values()),
        "programs": programs,
        "ended": ended,
        "engines": engines,
        "node": {
            "ready": bool(nodes) and not unready,
            "detail": "; ".join(f"{name}: {why}" for name, why in sorted(unready.items())),
            "policy": ", ".join(sorted({node["policy"] for node in nodes})),
            "time": now_s,
            "uptime_s": max((node["uptime_s"] for node in nodes), default=0.0),
        },
    }


def _slots(place: ReaderPlace) -> set[int]:
    return {read.slot for read in place.nodes.values()}


def _program(row: Row, node: str, base: int) -> Row:
    parent = row["parent"]
    return {
        **row,
        "node": node,
        "process": base + row["process"],
        "parent": None if parent is None else base + parent,
        "engines": [f"{node}/{engine}" for engine in row["engines"]],
    }
