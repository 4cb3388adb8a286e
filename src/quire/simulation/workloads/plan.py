"""The future of a program, known beforehand: its calls, their order and their lengths.

A plan is given to a simulated program in place of a user, a tool and a sampler. Owns the form of
plans and their checks; knows nothing of how they are drawn or played.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True, slots=True)
class CallPlan:
    """One call of a model.

    Its prompt is the whole text of call ``extends``, prompt and answer, and ``num_prompt`` tokens
    after it; without ``extends`` it is the first ``num_shared`` tokens of the text with which all
    calls of the program may begin, and ``num_prompt`` tokens. Those are its own, or (``repeats``)
    those of an earlier call, which has as many. It is made ``wait_s`` after the last of ``after``
    has ended, which is the time of tools and people, or after the program has arrived. ``member``:
    0 for the program itself, which ends with its last call and theirs, else one of the programs
    that it launches.
    """

    num_prompt: int
    num_output: int
    extends: int | None = None
    after: tuple[int, ...] = ()
    wait_s: float = 0.0
    thread: int = 0
    member: int = 0
    num_shared: int = 0
    repeats: int | None = None


@dataclass(frozen=True)
class ProgramPlan:
    """The calls of a program, each after those that it names. ``kind``: the workload."""

    kind: str
    calls: tuple[CallPlan, ...]

    def __post_init__(self) -> None:
        assert self.calls, "a program makes a call"
        for number, call in enumerate(self.calls):
            named = call.after if call.extends is None else (*call.after, call.extends)
            assert all(0 <= other < number for other in named), "a call follows earlier ones"
            assert call.extends is None or call.extends in call.after, "its text is known by then"
            if call.repeats is not None:
                assert call.repeats < number, "what is repeated comes before"
                assert self.calls[call.repeats].num_prompt == call.num_prompt, "the same text"
            assert call.num_prompt >= 1, "a call reads"
            assert call.num_output >= 1, "a call writes"

    @cached_property
    def prompt_lengths(self) -> tuple[int, ...]:
        """Tokens of each call's whole prompt."""
        lengths: list[int] = []
        for call in self.calls:
            before = 0
            if call.extends is not None:
                before = lengths[call.extends] + self.calls[call.extends].num_output
            lengths.append(before + call.num_shared + call.num_prompt)
        return tuple(lengths)

    @property
    def num_output_tokens(self) -> int:
        return sum(call.num_output for call in self.calls)

    @property
    def num_prompt_tokens(self) -> int:
        """The number of tokens that must be computed if the prefix cache keeps all: those that
        calls add to the program's texts. A text that several calls have counts once."""
        shared = max(call.num_shared for call in self.calls)
        return shared + sum(call.num_prompt for call in self.calls if call.repeats is None)
