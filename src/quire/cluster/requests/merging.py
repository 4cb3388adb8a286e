"""The process tables of many nodes as one: what ``GET /v1/programs/changes`` of a router says.

Owns how rows are named: a node's ``process`` gets the node's slot above it, engines and programs
get the node's name. Pure, and nothing is remembered between two answers: what each node has told,
and which slot it has, stands in ``next``, so that any router can go on where another one has
stopped.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from quire.core.errors import InvalidArgument

_SLOT = 1 << 32
"""Processes of a node are fewer; with a slot they are exact in JavaScript's numbers, too."""

_MAX_SLOTS = 1 << 20
_MAX_CHARS = 1 << 18

Row = dict[str, Any]


class _Read(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """Of one node. ``since``: its own ``next``."""

    slot: int
    since: str


@dataclass(frozen=True, slots=True)
class ReaderPlace:
    """How far a reader has read each node, by name."""

    nodes: Mapping[str, _Read] = field(default_factory=dict)

    def since(self, node: str) -> str:
        """What the node is asked with; empty: from the beginning."""
        read = self.nodes.get(node)
        return "" if read is None else read.since


def read_place(text: str) -> ReaderPlace:
    """The place that ``text``, a former ``next``, says.

    Raises:
        InvalidArgument: it was never given out.
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
    """Whether a node is gone, or has forgotten what it told: which rows were its own is not known,
    so that a reader must be told of all of them again."""
    return any(
        name not in answers
        # while its table is empty, a node tells the whole of it again and again
        or (answers[name]["whole"] and answers[name]["next"] != read.since)
        for name, read in place.nodes.items()
    )


def merged(
    place: ReaderPlace, answers: Mapping[str, Row], missing: Mapping[str, str], now_s: float
) -> Row:
    """What a reader at ``place`` is told. ``answers``: of the nodes that have answered, each behind
    ``place``; ``missing``: of the others, why. ``now_s``: Unix time."""
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
