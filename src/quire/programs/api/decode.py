"""Trait Decode: a whole generation loop as one command. Served by the engine."""

from __future__ import annotations

from collections.abc import Sequence

from quire.core.commands import Decode as DecodeCommand
from quire.core.decoding import GrammarSpec, SamplerSpec, StopSpec
from quire.core.errors import InvalidArgument, TraitMissing
from quire.core.traits import Trait
from quire.programs.api.handles import (
    KvPage,
    Queue,
    append_positions,
    as_list,
    check_all,
    check_distinct,
)
from quire.programs.api.queued import TraitFunctions, queued
from quire.programs.api.sample import GREEDY
from quire.programs.api.specs import check_grammar, check_sampler
from quire.programs.api.stream import DecodeStream


class DecodeFunctions(TraitFunctions):
    trait = Trait.DECODE

    @queued
    def decode(
        self,
        queue: Queue,
        ikv: KvPage | Sequence[KvPage],
        tokens: Sequence[int],
        okv: KvPage | Sequence[KvPage],
        *,
        stop: StopSpec,
        position: int | None = None,
        sampler: SamplerSpec = GREEDY,
        grammar: GrammarSpec | None = None,
        num_logprobs: int | None = None,
        num_prompt_logprobs: int | None = None,
        history: Sequence[int] | None = None,
        cache: bool = True,
        adapter: str | None = None,
        num_generated: int = 0,
        stream: bool = True,
    ) -> DecodeStream:
        """Run ``tokens`` after the pages ``ikv``, then sample and append until ``stop`` applies.

        K and V are appended to ``okv``, which must have free slots for ``tokens``; the decode ends
        with reason ``length`` when it is full. The last sampled token is not run. ``position``: of
        the first of ``tokens`` (default: after the highest position in ``ikv``). ``history``:
        tokens before ``tokens``, for penalties. ``cache``: reuse pages of the prefix index and add
        to it; effective where ``ikv`` and ``okv`` hold plain causal tokens from position 0.
        ``adapter``: run with the LoRA adapter of that name (default: the adapter of the queue's
        model, if it has one). ``num_generated``: how many of the last tokens of ``history`` and
        ``tokens`` were sampled before, so that grammar, stop strings and penalties continue after
        them. ``stream``: chunks come while it runs; otherwise there is one, at the end, which
        costs the node less.

        Raises:
            InvalidArgument: no tokens, too few free slots, an unknown position or adapter, or a
                sampler or grammar that was not made by the SDK.
            UnknownHandle: a handle that this program does not hold.
        """
        context, output = as_list(ikv), as_list(okv)
        check_all(self._issuer, context, KvPage)
        check_all(self._issuer, output, KvPage)
        check_distinct(output)
        if not tokens:
            raise InvalidArgument("decode needs at least one token to run: pass the last one")
        check_sampler(sampler)
        check_grammar(grammar)
        if grammar is not None and Trait.GRAMMAR not in queue.state.traits:
            raise TraitMissing(
                f"model {queue.state.model.id!r} does not have the trait {Trait.GRAMMAR}: decode "
                "without a grammar or choose another model"
            )
        if adapter is not None and Trait.ADAPTER not in queue.state.traits:
            raise TraitMissing(
                f"model {queue.state.model.id!r} does not have the trait {Trait.ADAPTER}: decode "
                f"without adapter {adapter!r}, or load it when the engine starts"
            )
        start = _behind(context) if position is None else position
        command = DecodeCommand(
            id=self._issuer.command_id(),
            after=queue.dependencies,
            context=[page.page_id for page in context],
            output=[page.page_id for page in output],
            tokens=list(tokens),
            position=start,
            sampler=sampler,
            stop=stop,
            grammar=grammar,
            num_logprobs=num_logprobs,
            num_prompt_logprobs=num_prompt_logprobs,
            history=None if history is None else list(history),
            cache=cache,
            adapter=adapter or queue.state.model.adapter,
            num_generated=num_generated,
            stream=stream,
        )
        end = start + len(tokens)
        if output:
            append_positions(output, range(start, end))
        decode = DecodeStream(self._issuer, queue.state, command.id, output, end)
        self._issuer.issue(queue, command, decode)
        return decode


def _behind(context: Sequence[KvPage]) -> int:
    highest = -1
    for page in context:
        positions = page.positions
        if positions is None:
            raise InvalidArgument(
                f"the positions of page {page.id} are not known here: pass position to decode"
            )
        highest = max(highest, *positions, -1)
    return highest + 1
