"""Checks commands when they are issued.

Owns no state: reads the process table and the engines. What depends on commands that have not run
yet (fills, names of exports) is checked when the command starts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from quire.control.commands.checks import (
    check_history,
    check_image,
    check_mask,
    check_positions,
    check_reposition,
    check_room,
    check_scores,
    check_stop,
    check_token_slots,
    check_tokens,
    check_top_k,
    check_working_set,
    distinct,
    require,
    require_page_quota,
    require_pending_room,
)
from quire.control.commands.handle_checks import (
    check_context_and_output,
    check_held_embeds,
    check_held_pages,
    check_new_embeds,
    check_new_pages,
)
from quire.control.commands.lease_checks import check_lease_command
from quire.control.commands.wire_types import WireTypes
from quire.control.engines.adapters import find_adapter
from quire.control.programs.program import CommandQueue
from quire.core import commands as c
from quire.core.engine_info import EngineInfo
from quire.core.errors import InvalidArgument, PromptTooLong, QuireError, from_record
from quire.core.lease_commands import (
    CloseLease,
    LeaseCommand,
    OpenLease,
    PinPrefix,
    RenewLease,
    SendPages,
    TakeLease,
)

MAX_NAME_CHARS = 512
"""The longest name of an export: control keeps the names and lists them."""


class Validator:
    """Checks commands against what their queue's program holds. Raises ``QuireError``s."""

    def __init__(self) -> None:
        self._types = WireTypes()
        self._checks: Mapping[type[c.Command], Callable[[Any, CommandQueue, EngineInfo], None]] = {
            c.AllocPages: self._alloc_pages,
            c.DeallocPages: self._dealloc_pages,
            c.AllocEmbeds: self._alloc_embeds,
            c.DeallocEmbeds: self._dealloc_embeds,
            c.ExportPages: self._export_pages,
            c.ReleaseExport: self._names_an_export,
            c.ListExports: self._names_an_export,
            c.ImportPages: self._import_pages,
            c.ImportPrefix: self._import_prefix,
            c.CopyPage: self._copy_page,
            c.MaskPage: self._mask_page,
            c.RepositionPage: self._reposition_page,
            c.TruncatePage: self._truncate_page,
            c.EmbedText: self._embed_text,
            c.EmbedImage: self._embed_image,
            c.Forward: self._forward,
            c.GetNextDist: self._get_next_dist,
            c.Sample: self._sample,
            c.Decode: self._decode,
            OpenLease: self._lease,
            SendPages: self._lease,
            TakeLease: self._lease,
            RenewLease: self._lease,
            CloseLease: self._lease,
            PinPrefix: self._lease,
        }

    def check(self, command: c.Command, queue: CommandQueue, info: EngineInfo) -> None:
        """Raise the error that the issuer gets; return if the command may be queued."""
        require_pending_room(queue.program)
        check = self._checks.get(type(command))
        if check is None:
            return
        try:
            check(command, queue, info)
        except QuireError:
            raise
        except Exception:
            self._types.check(command)  # a value of a wrong type is the issuer's error
            raise

    def _alloc_pages(self, command: c.AllocPages, queue: CommandQueue, info: EngineInfo) -> None:
        check_new_pages(command.pages, queue.program)
        require_page_quota(queue.program, len(command.pages))

    def _dealloc_pages(
        self, command: c.DeallocPages, queue: CommandQueue, info: EngineInfo
    ) -> None:
        distinct("pages", command.pages)
        check_held_pages(command.pages, queue)

    def _alloc_embeds(self, command: c.AllocEmbeds, queue: CommandQueue, info: EngineInfo) -> None:
        check_new_embeds(command.embeds, queue.program, info)

    def _dealloc_embeds(
        self, command: c.DeallocEmbeds, queue: CommandQueue, info: EngineInfo
    ) -> None:
        distinct("embeds", command.embeds)
        check_held_embeds(command.embeds, queue)

    def _export_pages(self, command: c.ExportPages, queue: CommandQueue, info: EngineInfo) -> None:
        self._types.check(command)
        require(
            0 < len(command.name) <= MAX_NAME_CHARS,
            f"an export's name has {len(command.name)} characters: give 1 to {MAX_NAME_CHARS}",
        )
        require(
            command.ttl_s is None or command.ttl_s > 0,
            f"ttl_s is {command.ttl_s}: choose a positive time, or None for the owner's life",
        )
        distinct("pages", command.pages)
        check_held_pages(command.pages, queue)
        if command.tokens is not None:
            most = len(command.pages) * info.pool.page_size + 1
            require(
                len(command.tokens) <= most,
                f"{len(command.tokens)} tokens for an export of {len(command.pages)} pages: give "
                f"at most {most}, the text of the pages and the token that follows it",
            )
            check_tokens(command.tokens, info)

    def _names_an_export(
        self, command: c.ReleaseExport | c.ListExports, queue: CommandQueue, info: EngineInfo
    ) -> None:
        self._types.check(command)

    def _import_pages(self, command: c.ImportPages, queue: CommandQueue, info: EngineInfo) -> None:
        self._types.check(command)
        check_new_pages(command.pages, queue.program)

    def _import_prefix(
        self, command: c.ImportPrefix, queue: CommandQueue, info: EngineInfo
    ) -> None:
        check_new_pages(command.pages, queue.program)
        self._prompt(command, command.tokens, queue, info)
        self._adapter(command.adapter, info)
        num_needed = len(command.tokens) // info.pool.page_size
        require(
            len(command.pages) >= num_needed,
            f"{len(command.pages)} page ids are offered for a prefix of up to {num_needed} pages: "
            "offer len(tokens) // page_size ids",
        )

    def _copy_page(self, command: c.CopyPage, queue: CommandQueue, info: EngineInfo) -> None:
        self._types.check(command)
        check_held_pages([command.source, command.target], queue)
        require(command.source != command.target, "source and target are the same page")
        size = info.pool.page_size
        offsets = (command.source_offset, command.target_offset)
        require(
            command.num_slots >= 1
            and min(offsets) >= 0
            and max(offsets) + command.num_slots <= size,
            f"{command.num_slots} slots from {offsets[0]} to {offsets[1]} do not lie within pages "
            f"of {size} slots",
        )

    def _mask_page(self, command: c.MaskPage, queue: CommandQueue, info: EngineInfo) -> None:
        check_held_pages([command.page], queue)
        require(
            len(command.visible) == info.pool.page_size,
            f"the mask has {len(command.visible)} entries; a page has {info.pool.page_size} slots",
        )

    def _reposition_page(
        self, command: c.RepositionPage, queue: CommandQueue, info: EngineInfo
    ) -> None:
        self._types.check(command)
        check_held_pages([command.page], queue)
        check_reposition(command, info)

    def _truncate_page(
        self, command: c.TruncatePage, queue: CommandQueue, info: EngineInfo
    ) -> None:
        self._types.check(command)
        check_held_pages([command.page], queue)
        require(
            0 <= command.fill <= info.pool.page_size,
            f"fill is {command.fill}; a page has {info.pool.page_size} slots",
        )

    def _embed_text(self, command: c.EmbedText, queue: CommandQueue, info: EngineInfo) -> None:
        count = len(command.embeds)
        require(count > 0, "embed_text needs at least one token")
        check_token_slots(command.token_slots, count)
        if command.token_slots is None:
            if len(command.tokens) != count:
                raise InvalidArgument(
                    f"{len(command.tokens)} tokens for {count} embeds: give one for each"
                )
            check_tokens(command.tokens, info)
        check_positions(command.positions, count, info)
        distinct("embeds", command.embeds)
        check_held_embeds(command.embeds, queue)

    def _embed_image(self, command: c.EmbedImage, queue: CommandQueue, info: EngineInfo) -> None:
        check_image(command, info)
        check_positions(command.positions, len(command.embeds), info)
        distinct("embeds", command.embeds)
        check_held_embeds(command.embeds, queue)

    def _lease(self, command: LeaseCommand, queue: CommandQueue, info: EngineInfo) -> None:
        self._types.check(command)
        check_lease_command(command, queue, info)
        if isinstance(command, SendPages):
            check_held_pages(command.pages, queue)
        elif isinstance(command, TakeLease):
            check_new_pages(command.pages, queue.program)
        elif isinstance(command, OpenLease | PinPrefix):
            self._adapter(command.adapter, info)

    def _adapter(self, name: str | None, info: EngineInfo) -> None:
        if name is not None:
            find_adapter(name, info)

    def _prompt(
        self, command: c.Command, tokens: list[int], queue: CommandQueue, info: EngineInfo
    ) -> None:
        prompt = queue.pack(tokens)
        check_tokens(tokens, info, prompt)
        if prompt is None:
            self._types.check(command)

    def _forward(self, command: c.Forward, queue: CommandQueue, info: EngineInfo) -> None:
        count = len(command.inputs)
        self._adapter(command.adapter, info)
        require(count > 0, "forward needs at least one input")
        if len(command.outputs) > count:
            raise InvalidArgument(
                f"{len(command.outputs)} outputs for {count} inputs: at most one each"
            )
        distinct("inputs", command.inputs)
        check_held_embeds(command.inputs, queue)
        distinct("outputs", command.outputs)
        check_held_embeds(command.outputs, queue)
        check_context_and_output(command.context, command.output, queue)
        check_mask(command, info)
        check_scores(command, info)
        num_pages = len(command.context)
        if command.output != command.context:
            num_pages = len({*command.context, *command.output})
        check_working_set(num_pages, info)
        if command.output:
            check_room(count, len(command.output), info)

    def _get_next_dist(self, command: c.GetNextDist, queue: CommandQueue, info: EngineInfo) -> None:
        require(bool(command.embeds), "get_next_dist needs at least one embed")
        check_held_embeds(command.embeds, queue)
        if command.top_k < 1:
            raise InvalidArgument(f"top_k is {command.top_k}: ask for at least one token")
        check_top_k(command.top_k, "top_k", queue)

    def _sample(self, command: c.Sample, queue: CommandQueue, info: EngineInfo) -> None:
        count = len(command.embeds)
        require(count > 0, "sample needs at least one embed")
        self._types.check_sampler(command.sampler)
        check_held_embeds(command.embeds, queue)
        check_positions(command.positions, count, info)
        check_token_slots(command.token_slots, count)
        distinct("token slots", command.token_slots or ())
        check_history(command.history, info)

    def _decode(self, command: c.Decode, queue: CommandQueue, info: EngineInfo) -> None:
        count = len(command.tokens)
        if command.refusal is not None:
            raise from_record(command.refusal)
        require(count > 0, "decode needs at least one token to run")
        self._types.check_decode(command)
        self._adapter(command.adapter, info)
        require(command.position >= 0, f"position {command.position} is negative")
        self._prompt(command, command.tokens, queue, info)
        check_history(command.history, info)
        check_stop(command.stop, info)
        if command.position + count > info.max_model_len:
            raise PromptTooLong(
                f"the prompt ends at position {command.position + count}, but the model's context "
                f"has {info.max_model_len} positions: shorten it",
                num_tokens=command.position + count,
                max_model_len=info.max_model_len,
            )
        num_known = count + len(command.history or ())
        require(
            0 <= command.num_generated <= num_known,
            f"num_generated is {command.num_generated} of {num_known} tokens",
        )
        for name in ("num_logprobs", "num_prompt_logprobs"):
            number = getattr(command, name)
            require(number is None or number >= 0, f"{name} is {number}: choose 0 or more")
            check_top_k(number or 0, name, queue)
        check_context_and_output(command.context, command.output, queue)
        check_room(count, len(command.output), info)
        size = info.pool.page_size
        num_output = min(len(command.output), -(-(count + command.stop.max_tokens) // size) + 1)
        num_others = len({*command.context} - {*command.output}) if command.context else 0
        check_working_set(num_others + num_output, info)
