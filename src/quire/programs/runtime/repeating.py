"""Rewrites commands that were answered before, so that they rebuild pages and nothing else.

Pure functions. Sampled tokens are not sampled again but run as a prompt, so that the pages hold the
tokens that the program received, whatever another batch would have sampled.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from quire.core import commands as c
from quire.core.decoding import SamplerSpec, StopSpec
from quire.core.ids import CommandId, QueueId, TokenSlotId
from quire.programs.runtime.replay_log import IssuedCommand

NewId = Callable[[], CommandId]


def is_same(entry: IssuedCommand, queue: QueueId, command: c.Command) -> bool:
    """Whether the program repeats the recorded command. The commands after which it is to run are
    not compared: which of them are still pending depends on the time."""
    return (entry.queue, entry.asked) == (queue, behind(command, entry.asked.after))


def behind(command: c.Command, after: tuple[CommandId, ...]) -> c.Command:
    """``command`` with ``after`` as the commands that it waits for."""
    if command.after == after:
        return command
    return msgspec.structs.replace(command, after=after)


def again(
    entry: IssuedCommand, command: c.Command, slots: Mapping[TokenSlotId, int], new_id: NewId
) -> list[c.Command]:
    """The commands to issue for a command that has ended. None for a failed one, because it changed
    nothing; except for a cancelled decode, whose pages hold the tokens of its replies.

    ``command``: the command as it was sent. ``slots``: the known tokens in token slots.
    """
    if entry.error is not None:
        is_cut = entry.error.code == "program_cancelled" and entry.tokens()
        return [_ran(command, entry.tokens())] if is_cut and isinstance(command, c.Decode) else []
    match command:
        case c.GetNextDist() | c.Sample():  # keeps its id, for which other commands may wait
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
    """``command`` with a seed, so that it can be repeated."""
    if isinstance(command, c.Decode | c.Sample):
        sampler = command.sampler
        if not sampler.greedy and sampler.seed is None:
            sampler = msgspec.structs.replace(sampler, seed=seed)
            return msgspec.structs.replace(command, sampler=sampler)
    return command


def without(command: c.Command, gone: frozenset[CommandId] | set[CommandId]) -> c.Command:
    """``command`` without dependencies on commands that are not issued this time."""
    if not command.after or gone.isdisjoint(command.after):
        return command
    left = tuple(one for one in command.after if one not in gone)
    return msgspec.structs.replace(command, after=left)


def _ran(decode: c.Decode, tokens: list[int]) -> c.Command:
    """A decode that runs the prompt and all sampled tokens but the last, which was not run
    either."""
    return msgspec.structs.replace(
        decode,
        tokens=[*decode.tokens, *tokens[:-1]],
        sampler=SamplerSpec(),
        stop=StopSpec(max_tokens=0),
        grammar=None,
        num_logprobs=None,
        num_prompt_logprobs=None,
    )


def _computed(wanted: c.ImportPrefix, entry: IssuedCommand, new_id: NewId) -> list[c.Command]:
    """Compute the pages, because the prefix index was lost with the engine."""
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
