"""Commands that were answered before, put so that they rebuild pages and change nothing else.

Pure functions. Tokens that were sampled are not sampled again but run as a prompt: whatever the
arithmetic of another batch would choose, the pages hold what the program was told.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from quire.core import commands as c
from quire.core.decoding import SamplerSpec, StopSpec
from quire.core.ids import CommandId, TokenSlotId
from quire.programs.runtime.replay_log import Issued

NewId = Callable[[], CommandId]


def again(entry: Issued, slots: Mapping[TokenSlotId, int], new_id: NewId) -> list[c.Command]:
    """What to issue for a command that has ended; nothing for one that failed: it changed nothing,
    but for a decode that was cancelled, whose pages hold what it told.

    ``slots``: the tokens in token slots, as far as they are known.
    """
    command = entry.sent
    if entry.error is not None:
        is_cut = entry.error.code == "program_cancelled" and entry.tokens()
        return [_ran(command, entry.tokens())] if is_cut and isinstance(command, c.Decode) else []
    match command:
        case c.GetNextDist() | c.Sample():  # others may wait for it
            return [c.Synchronize(id=command.id, after=command.after)]
        case c.Decode():
            return [_ran(command, entry.tokens())]
        case c.ImportPrefix():
            return _computed(command, entry, new_id)
        case c.EmbedText(token_slots=list() as named):
            if all(slot in slots for slot in named):
                tokens = [slots[slot] for slot in named]
                return [msgspec.structs.replace(command, tokens=tokens, token_slots=None)]
    return [command]


def seeded(command: c.Command, seed: int) -> c.Command:
    """With a seed, so that it can be said again."""
    if isinstance(command, c.Decode | c.Sample):
        sampler = command.sampler
        if not sampler.greedy and sampler.seed is None:
            sampler = msgspec.structs.replace(sampler, seed=seed)
            return msgspec.structs.replace(command, sampler=sampler)
    return command


def without(command: c.Command, gone: frozenset[CommandId] | set[CommandId]) -> c.Command:
    """Not waiting for commands that are not issued this time."""
    if not command.after or gone.isdisjoint(command.after):
        return command
    left = tuple(one for one in command.after if one not in gone)
    return msgspec.structs.replace(command, after=left)


def _ran(decode: c.Decode, tokens: list[int]) -> c.Command:
    """The last sampled token has not been run, then as now."""
    return msgspec.structs.replace(
        decode,
        tokens=[*decode.tokens, *tokens[:-1]],
        sampler=SamplerSpec(),
        stop=StopSpec(max_tokens=0),
        grammar=None,
        num_logprobs=None,
        num_prompt_logprobs=None,
    )


def _computed(wanted: c.ImportPrefix, entry: Issued, new_id: NewId) -> list[c.Command]:
    """The prefix index has lost its pages with the engine: compute them."""
    (reply,) = entry.replies
    assert isinstance(reply, c.Imported)
    if not reply.pages:
        return []
    pages = [page.page for page in reply.pages]
    return [
        c.AllocPages(id=new_id(), after=wanted.after, pages=pages),
        c.Decode(
            id=wanted.id,
            context=[],
            output=pages,
            tokens=wanted.tokens[: reply.num_tokens],
            position=0,
            sampler=SamplerSpec(),
            stop=StopSpec(max_tokens=0),
            adapter=wanted.adapter,
        ),
    ]
