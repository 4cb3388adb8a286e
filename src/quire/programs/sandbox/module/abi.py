"""The guest ABI, version 1.4, as numbers and layouts; docs/reference/guest-abi.md describes it.

All numbers are little-endian; addresses are byte offsets into the module's memory.
"""

from __future__ import annotations

from enum import IntEnum
from struct import Struct
from typing import NamedTuple

from quire.core.errors import ErrorRecord

ABI_EXPORT = "quire_abi_1"
MINOR = 4
"""Operations are added, never changed; the answer of ``MODEL_INFO`` includes this number."""
START_EXPORT = "quire_start"
POLL_EXPORT = "quire_poll"
MANIFEST_EXPORT = "quire_manifest"

IO = Struct("<8I")
COMMAND = Struct("<HHIIIIIII")
EVENT = Struct("<HHIiIIIII")

FLAG_LAST = 1
"""Flag of an event: the command's last event."""

MAX_RING = 1 << 16
"""The most entries of one ring."""

HOST_IDS = 1 << 32
"""Ids from here on are for commands whose answers the guest does not want."""


class GuestOp(IntEnum):
    """The operations, named like the calls and commands of ``core``. The name of another layout of
    one ends with what it adds (``FORWARD_WITH``, ``EMBED_SLOTS``)."""

    SEND = 1
    RECEIVE = 2
    LOG = 3
    SLEEP = 4
    HTTP_GET = 5
    HTTP_POST = 6
    END = 7
    CANCEL_ASKED = 8
    ASK_SERVICE = 9
    TOKENIZE = 16
    DETOKENIZE = 17
    MODEL_INFO = 18
    CREATE_QUEUE = 32
    CLOSE_QUEUE = 33
    RESET_QUEUE = 34
    SYNCHRONIZE = 35
    CANCEL = 36
    SET_QUEUE_PRIORITY = 37
    ALLOC_PAGES = 40
    DEALLOC_PAGES = 41
    ALLOC_EMBEDS = 42
    DEALLOC_EMBEDS = 43
    EXPORT_PAGES = 44
    IMPORT_PAGES = 45
    RELEASE_EXPORT = 46
    IMPORT_PREFIX = 47
    EMBED_TEXT = 48
    FORWARD = 49
    GET_NEXT_DIST = 50
    SAMPLE = 51
    DECODE = 52
    COPY_PAGE = 53
    TRUNCATE_PAGE = 54
    MASK_PAGE = 55
    FORWARD_WITH = 56
    EMBED_SLOTS = 57
    SAMPLE_SLOTS = 58
    DECODE_WITH = 59
    EXPORT_TEXT = 60
    IMPORT_TEXT = 61
    REPOSITION_PAGE = 62


class Status(IntEnum):
    OK = 0
    INVALID = 1
    UNKNOWN_HANDLE = 2
    CAPACITY = 3
    POISONED = 4
    CANCELLED = 5
    ENGINE = 6
    FORBIDDEN = 7
    CLOSED = 8
    TOO_LARGE = 9
    OTHER = 15


GRAMMARS = {1: "json_schema", 2: "regex", 3: "lark"}
"""Kinds of grammars of ``decode_with``; 0: none."""

_COUNTED = frozenset(
    (GuestOp.ALLOC_PAGES, GuestOp.DEALLOC_PAGES, GuestOp.ALLOC_EMBEDS, GuestOp.DEALLOC_EMBEDS,
     GuestOp.EXPORT_PAGES, GuestOp.IMPORT_PAGES, GuestOp.IMPORT_PREFIX, GuestOp.EMBED_TEXT,
     GuestOp.EMBED_SLOTS, GuestOp.MASK_PAGE, GuestOp.EXPORT_TEXT, GuestOp.IMPORT_TEXT)
)  # fmt: skip
"""Operations whose field ``c`` counts the entries in their payload, at most two numbers each."""

_DETOKENIZE = int(GuestOp.DETOKENIZE)
"""A plain number, because accessing an enum member takes longer than the check of an entry."""

_STATUS_OF_CODE = {
    "invalid_argument": Status.INVALID,
    "invalid_request": Status.INVALID,
    "invalid_grammar": Status.INVALID,
    "never_fits": Status.INVALID,
    "never_within_quota": Status.INVALID,
    "context_length_exceeded": Status.INVALID,
    "trait_missing": Status.INVALID,
    "unknown_handle": Status.UNKNOWN_HANDLE,
    "pool_exhausted": Status.CAPACITY,
    "quota_exceeded": Status.CAPACITY,
    "mailbox_full": Status.CAPACITY,
    "queue_poisoned": Status.POISONED,
    "program_cancelled": Status.CANCELLED,
    "engine_lost": Status.ENGINE,
    "engine_fault": Status.ENGINE,
    "page_lost": Status.ENGINE,
    "forbidden": Status.FORBIDDEN,
    "mailbox_closed": Status.CLOSED,
}

FINISH = {"stop": 1, "length": 2, "cancelled": 3}
"""Field ``b`` of a decode's last event."""


def status_of(error: ErrorRecord) -> Status:
    return _STATUS_OF_CODE.get(error.code, Status.OTHER)


class RingCommand(NamedTuple):
    """One entry of the command ring, in the order of its fields in memory."""

    op: int
    flags: int
    id: int
    a: int
    b: int
    c: int
    d: int
    address: int
    length: int


def named_bytes(entry: RingCommand) -> int:
    """The number of bytes that the host has to copy or create for ``entry``."""
    op = entry.op
    if op in _COUNTED:
        return entry.length + 8 * entry.c
    return entry.length + (4 * entry.b if op == _DETOKENIZE else 0)


class IoArea(NamedTuple):
    """The structure to which ``quire_abi_1`` points."""

    commands: int
    max_commands: int
    events: int
    max_events: int
    inbox: int
    inbox_bytes: int
    reserved_1: int
    reserved_2: int
