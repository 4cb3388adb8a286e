"""Single conditions on a command's arguments, each with its message.

Owns nothing and knows no queue's order; raises the error that the issuer gets.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable
from operator import attrgetter
from typing import Any

from quire.control.memory.packed_tokens import PackedPrompt, least_and_most
from quire.control.programs.families import require_room
from quire.control.programs.program import CommandQueue, Program
from quire.core import commands as c
from quire.core.decoding import StopSpec
from quire.core.engine_info import EngineInfo
from quire.core.errors import (
    InvalidArgument,
    NeverFits,
    NeverWithinQuota,
    PromptTooLong,
    QuotaExceeded,
    from_record,
)
from quire.core.traits import Trait

_MANY_TOKENS = 64
"""Fewer are checked one by one in less time than it takes to begin with their bytes."""

MAX_STOPS = 1024
"""The most stop tokens of a decode, and the most stop strings: each is looked for at every step, in
a message that carries others' decodes too."""

MAX_STOP_BYTES = 1 << 16
"""The most bytes of a decode's stop strings together."""


MAX_HISTORY = 1 << 18
"""The most tokens of a history, unless the model's context is longer: samplers and grammars take it
up in the engine, where others wait."""


def require(condition: bool, message: str, **details: Any) -> None:
    """Raise ``InvalidArgument`` unless ``condition`` holds. Checks that every step of a program
    passes raise by themselves: here the message is built whether or not it is needed."""
    if not condition:
        raise InvalidArgument(message, **details)


def require_pending_room(program: Program) -> None:
    """Raise ``QuotaExceeded`` if one command more would be too many."""
    limit = program.quotas.max_pending_commands
    if limit is not None and len(program.entries) >= limit:
        raise QuotaExceeded(
            f"{len(program.entries)} commands are pending and the quota is {limit}: "
            "await some before issuing more",
            max_pending_commands=limit,
        )
    account = program.account
    if account.num_commands >= account.totals.max_pending_commands:
        account.require("max_pending_commands", account.num_commands, 1, "commands are pending")


def distinct(what: str, values: Collection[Hashable]) -> None:
    if len(values) > 1 and len(set(values)) != len(values):
        raise InvalidArgument(f"{what} are named twice: name each once")


def check_tokens(tokens: list[int], info: EngineInfo, prompt: PackedPrompt | None = None) -> None:
    """Raise ``InvalidArgument`` for a token that the model does not have. ``prompt``: the
    tokens packed, if they can be: as bytes, thousands are checked at once."""
    vocab_size = info.vocab_size
    if prompt is not None and len(tokens) >= _MANY_TOKENS:
        least, most = least_and_most(prompt.packed)
        if least >= 0 and most < vocab_size:
            return
    bad = [token for token in tokens if not 0 <= token < vocab_size]
    if bad:
        raise InvalidArgument(
            f"token ids {bad[:3]} are not in the vocabulary of {vocab_size} tokens"
        )


def check_history(history: list[int] | None, info: EngineInfo) -> None:
    if history is None:
        return
    most = max(MAX_HISTORY, info.max_model_len)
    if len(history) > most:
        raise InvalidArgument(
            f"a history of {len(history)} tokens: give at most {most}, the last ones"
        )
    check_tokens(history, info)


def check_stop(stop: StopSpec, info: EngineInfo) -> None:
    """Check when a decode ends. A token behind the vocabulary ends nothing; models name such."""
    require(
        stop.min_tokens >= 0 and stop.max_tokens >= 0,
        f"min_tokens is {stop.min_tokens} and max_tokens {stop.max_tokens}: neither may be "
        "negative",
    )
    for what, stops in (("tokens", stop.token_ids), ("strings", stop.strings)):
        if len(stops) > MAX_STOPS:
            raise InvalidArgument(f"{len(stops)} stop {what}: name at most {MAX_STOPS}")
    bad = [token for token in stop.token_ids if not 0 <= token < 1 << 31]
    if bad:
        raise InvalidArgument(
            f"stop tokens {bad[:3]}: the vocabulary has the tokens 0 to {info.vocab_size - 1}"
        )
    num_bytes = sum(map(len, stop.strings))
    if num_bytes > MAX_STOP_BYTES:
        raise InvalidArgument(
            f"stop strings of {num_bytes} bytes together: name at most {MAX_STOP_BYTES}"
        )


def check_positions(positions: list[int], count: int, info: EngineInfo) -> None:
    if len(positions) != count:
        raise InvalidArgument(f"{len(positions)} positions for {count} tokens: give one for each")
    if positions and min(positions) < 0:
        raise InvalidArgument(f"position {min(positions)} is negative: the first is 0")
    if positions and max(positions) >= info.max_model_len:
        raise PromptTooLong(
            f"position {max(positions)} is beyond the model's {info.max_model_len} positions",
            max_model_len=info.max_model_len,
        )


def check_token_slots(slots: list[Any] | None, count: int) -> None:
    if slots is not None and len(slots) != count:
        raise InvalidArgument(
            f"{len(slots)} token slots for {count} tokens: give one for each, or none"
        )


def check_mask(command: c.Forward, info: EngineInfo) -> None:
    if command.mask is None:
        return
    count = len(command.inputs)
    num_columns = len(command.context) * info.pool.page_size + count
    require(
        len(command.mask) == count and all(len(row) == num_columns for row in command.mask),
        f"the mask must have {count} rows of {num_columns} columns (context slots, new tokens)",
    )


def check_scores(command: c.Forward, info: EngineInfo) -> None:
    if command.scores is not None and Trait.SCORES not in info.traits:
        raise InvalidArgument(
            f"model {info.model} does not have the trait {Trait.SCORES} on backend {info.backend}: "
            "leave the scores out, or run it on the cpu or torch backend"
        )


def check_reposition(command: c.RepositionPage, info: EngineInfo) -> None:
    if Trait.REPOSITION not in info.traits:
        raise InvalidArgument(
            f"model {info.model} does not have the trait {Trait.REPOSITION} on backend "
            f"{info.backend}: its keys cannot be taken to other positions, compute them there"
        )
    require(
        abs(command.shift) < info.max_model_len,
        f"shift is {command.shift}; model {info.model} has {info.max_model_len} positions",
    )


def check_image(command: c.EmbedImage, info: EngineInfo) -> None:
    images = info.images
    if images is None:
        raise InvalidArgument(
            f"model {info.model} does not have the trait {Trait.INPUT_IMAGE}: it sees no images, "
            "send them to a model that does"
        )
    if command.refusal is not None:
        raise from_record(command.refusal)
    count, size = len(command.embeds), len(command.image)
    require(
        count == images.num_embeds,
        f"{count} embeds for an image that takes {images.num_embeds}: ask num_embs_needed",
    )
    require(
        0 < size <= images.max_bytes,
        f"the image has {size} bytes; model {info.model} takes 1 to {images.max_bytes}",
    )


def check_working_set(num_pages: int, info: EngineInfo) -> None:
    num_blocks = info.pool.groups[0].num_blocks
    if num_pages > num_blocks:
        raise NeverFits(
            f"the command needs {num_pages} pages at once and the whole pool has {num_blocks}: "
            "use fewer pages or raise the engine's kv_cache_bytes",
            num_pages=num_pages,
            num_blocks=num_blocks,
        )


def check_room(num_tokens: int, num_pages: int, info: EngineInfo) -> None:
    if num_tokens > num_pages * info.pool.page_size:
        raise InvalidArgument(
            f"{num_tokens} tokens do not fit into {num_pages} output pages of "
            f"{info.pool.page_size} slots: name more pages"
        )


def check_top_k(top_k: int, name: str, queue: CommandQueue) -> None:
    limit = queue.program.quotas.max_dist_top_k
    if top_k > limit:
        raise NeverWithinQuota(
            f"{name} is {top_k} and the quota is {limit}: ask for fewer", max_dist_top_k=limit
        )


def check_new_queue(program: Program) -> None:
    """Raise ``QuotaExceeded`` if ``program`` may have no further queue."""
    require_room(program, "max_queues", 1, "queues are open", lambda member: len(member.queues))
    account = program.account
    account.require("max_queues", account.num_queues, 1, "queues are held open")


def require_page_quota(program: Program, num_pages: int) -> None:
    """Raise ``QuotaExceeded`` if ``program`` may not hold so many more pages."""
    require_room(program, "max_pages", num_pages, "pages are held", attrgetter("num_held_pages"))
