"""Programs and those that they have launched: their quotas hold for the sum.

A program's use counts for itself and for all programs above it, so launching children does not
evade a quota. Tokens are counted as they come, because they stay counted when a child has ended.
What is held is summed when more is requested under a quota, so a program without quotas pays
nothing. The sum goes over living programs, which ``max_children`` bounds. Owns these links and
sums; must not know how anything is held.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal

from quire.control.programs.program import Entry, Program
from quire.core.errors import NeverWithinQuota, QuotaExceeded

HeldQuota = Literal["max_pages", "max_embeds", "max_exported_pages", "max_queues", "max_exports"]


def join_family(program: Program, launcher: Program) -> None:
    """Put ``program`` below ``launcher``, which launched it: the quotas of ``launcher`` hold for
    both."""
    program.launcher = launcher
    launcher.launched[program.id] = program


def leave_family(program: Program) -> None:
    """Take ``program``, which ends, out of its family. Programs that it launched and that still
    live go below the one above it; without one, its own quotas and counts still hold for them."""
    above = program.launcher
    if above is None:
        return
    del above.launched[program.id]
    for child in program.launched.values():
        join_family(child, above)
    program.launched = {}


def require_room(
    program: Program,
    quota: HeldQuota,
    num_more: int,
    what: str,
    num_held: Callable[[Program], int],
) -> None:
    """Raise ``QuotaExceeded`` unless ``program`` may hold ``num_more`` more of ``what``."""
    for owner, limit in _bounds(program, quota):
        held = sum(map(num_held, _family(owner)))
        if held + num_more > limit:
            whose = _of_family(owner) if owner is not program or program.launched else ""
            kind = QuotaExceeded if num_more <= limit else NeverWithinQuota
            remedy = "let go of some first" if num_more <= limit else "ask for fewer"
            raise kind(
                f"{held} {what}{whose}, {num_more} more are asked for and the quota "
                f"is {limit}: {remedy}",
                **{quota: limit},
            )


def num_pages_left(program: Program) -> int | None:
    """How many more pages ``program`` may hold; None: no quota bounds it."""
    left = [
        limit - sum(member.num_held_pages for member in _family(owner))
        for owner, limit in _bounds(program, "max_pages")
    ]
    return max(0, min(left)) if left else None


def count_tokens(entry: Entry, num_tokens: int) -> None:
    """Count ``num_tokens`` that were generated for ``entry``: sampled by a decode or by ``Sample``,
    or left to its program to choose from a distribution. Tokens generated in spare time do not
    count as service of the family."""
    program = entry.program
    program.num_generated_tokens += num_tokens
    if not entry.queue.is_spare:
        program.family_figures.generated_tokens += num_tokens
    owner: Program | None = program
    while owner is not None:
        owner.num_family_tokens += num_tokens
        owner = owner.launcher


def has_token_bound(program: Program) -> bool:
    """Whether a quota bounds the tokens that ``program`` may generate."""
    owner: Program | None = program
    while owner is not None:
        if owner.quotas.max_generated_tokens is not None:
            return True
        owner = owner.launcher
    return False


def num_tokens_left(program: Program) -> int | None:
    """How many more tokens ``program`` may generate; None: no quota bounds it."""
    left = [limit - owner.num_family_tokens for owner, limit in _token_bounds(program)]
    return max(0, min(left)) if left else None


def require_tokens(program: Program, num_more: int) -> None:
    """Raise ``NeverWithinQuota`` unless ``program`` may generate ``num_more`` more tokens: those
    that were generated stay counted, so the same command would fail again."""
    for owner, limit in _token_bounds(program):
        spent = owner.num_family_tokens
        if spent + num_more <= limit:
            continue
        is_alone = owner is program and spent == owner.num_generated_tokens
        whose = "" if is_alone else _of_family(owner)
        rest = (
            "which is its max_generated_tokens:"
            if spent >= limit
            else f"{num_more} more are asked for and max_generated_tokens is {limit}: ask for "
            "fewer,"
        )
        raise NeverWithinQuota(
            f"{spent} tokens were generated{whose}, {rest} go on in another session or program, or "
            "raise this quota",
            max_generated_tokens=limit,
        )


def forbid_spare_tokens(program: Program) -> None:
    """Raise ``NeverWithinQuota`` if a quota bounds what ``program`` generates: tokens generated in
    spare time may not be wanted, and must not take the place of those that are."""
    if has_token_bound(program):
        raise NeverWithinQuota(
            "the program's generated tokens are bounded, so that it may not generate any in spare "
            "time: issue the command on a queue of a higher priority"
        )


def check_family(program: Program) -> None:
    """Assert that its links are mutual and that the tokens of its children are counted."""
    for child in program.launched.values():
        assert child.launcher is program, "a child is known to its launcher alone"
    below = sum(child.num_family_tokens for child in program.launched.values())
    own = program.num_generated_tokens
    assert program.num_family_tokens >= own + below, "a family counts all of its tokens"


def _bounds(program: Program, quota: HeldQuota) -> Iterator[tuple[Program, int]]:
    """The programs that bound ``program``, itself first, and their limits. One whose limit is no
    less than that of the one above adds nothing: at least as much is held there."""
    owner: Program | None = program
    while owner is not None:
        limit: int | None = getattr(owner.quotas, quota)
        above = owner.launcher
        over: int | None = None if above is None else getattr(above.quotas, quota)
        if limit is not None and (over is None or limit < over):
            yield owner, limit
        owner = above


def _token_bounds(program: Program) -> Iterator[tuple[Program, int]]:
    """The programs that bound the tokens of ``program``, itself first. All are checked: tokens of
    an ended child stay counted above it, so the use under one bound does not follow from
    another."""
    owner: Program | None = program
    while owner is not None:
        if owner.quotas.max_generated_tokens is not None:
            yield owner, owner.quotas.max_generated_tokens
        owner = owner.launcher


def _family(program: Program) -> Iterator[Program]:
    """``program`` and all programs below it."""
    waiting = [program]
    while waiting:
        member = waiting.pop()
        yield member
        waiting += member.launched.values()


def _of_family(owner: Program) -> str:
    return f" by program {owner.name!r} and those that it has launched"
