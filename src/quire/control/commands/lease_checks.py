"""Checks lease commands when they are issued.

Owns no state; raises the error that the issuer gets. Whether a lease exists is checked when its
command's turn comes.
"""

from __future__ import annotations

from math import inf

from quire.control.commands.checks import check_tokens, check_working_set, distinct, require
from quire.control.programs.program import CommandQueue
from quire.core.engine_info import EngineInfo
from quire.core.errors import Forbidden, PromptTooLong
from quire.core.exchange import KEY_BYTES
from quire.core.lease_commands import (
    LeaseCommand,
    OpenLease,
    PinPrefix,
    RenewLease,
    SendPages,
    TakeLease,
)

MAX_TTL_S = 3600.0
"""The longest ``ttl_s``: a lease holds memory that nobody else can use. A client that needs it for
longer renews it."""


def check_lease_command(command: LeaseCommand, queue: CommandQueue, info: EngineInfo) -> None:
    """Raise the error of a command that can never succeed. The caller checks the pages."""
    if queue.program.form != "session":
        raise Forbidden(
            f"{type(command).__name__} is the node's own command: call /v1/microserving instead"
        )
    if isinstance(command, OpenLease):
        _check_open(command, info)
    elif isinstance(command, SendPages):
        _check_send(command, info)
    elif isinstance(command, TakeLease):
        _check_take(command, info)
    elif isinstance(command, RenewLease):
        _check_ttl(command.ttl_s)
    elif isinstance(command, PinPrefix):
        _check_pin(command, info)


def _check_open(command: OpenLease, info: EngineInfo) -> None:
    _check_data_plane(info)
    _check_ttl(command.ttl_s)
    require(
        len(command.key) == KEY_BYTES,
        f"the key of a lease has {len(command.key)} bytes: choose {KEY_BYTES}",
    )
    check_tokens(command.tokens, info)
    size = info.pool.page_size
    require(
        not command.opaque or not len(command.tokens) % size,
        f"{len(command.opaque)} opaque pages stand behind {len(command.tokens)} tokens, which do "
        f"not fill pages of {size} slots: count the slots of the last one as opaque",
    )
    require(
        all(1 <= fill <= size for fill in command.opaque),
        f"an opaque page of a lease has 1 to {size} slots, not {command.opaque[:8]}",
    )
    num_tokens = len(command.tokens) + sum(command.opaque)
    if num_tokens > info.max_model_len:
        raise PromptTooLong(
            f"a lease of {num_tokens} tokens, and the model has {info.max_model_len} positions: "
            "shorten it",
            num_tokens=num_tokens,
            max_model_len=info.max_model_len,
        )
    check_working_set(-(-len(command.tokens) // size) + len(command.opaque), info)


def _check_send(command: SendPages, info: EngineInfo) -> None:
    _check_data_plane(info)
    distinct("pages", command.pages)
    require(
        command.begin >= 0 and command.num_tokens >= 1,
        f"{command.num_tokens} tokens from slot {command.begin} on: send at least one, from slot 0 "
        "on",
    )
    require(
        command.content == info.content,
        f"the receiver's K and V are {command.content!r}, this engine's {info.content!r}: both "
        "must serve the same weights in the same form",
    )


def _check_take(command: TakeLease, info: EngineInfo) -> None:
    num_pages = -(-command.num_tokens // info.pool.page_size)
    require(command.num_tokens >= 0, f"{command.num_tokens} tokens of a lease: take 0 or more")
    require(
        len(command.pages) >= num_pages,
        f"{len(command.pages)} page ids are offered for {command.num_tokens} tokens: offer "
        f"{num_pages}",
    )


def _check_pin(command: PinPrefix, info: EngineInfo) -> None:
    check_tokens(command.tokens, info)
    _check_ttl(command.ttl_s)
    require(
        0 <= command.price < inf, f"price is {command.price}: choose 0 or more, and a finite one"
    )


def _check_data_plane(info: EngineInfo) -> None:
    require(
        bool(info.data_address),
        f"the engine of {info.model!r} exchanges no K and V with others: its backend "
        f"({info.backend}) has no data plane here",
    )


def _check_ttl(ttl_s: float) -> None:
    require(
        0 < ttl_s <= MAX_TTL_S,
        f"ttl_s is {ttl_s}: choose more than 0 and at most {MAX_TTL_S:g} seconds",
    )
