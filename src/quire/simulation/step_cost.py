"""The cost of the messages of a modelled engine.

Owns the model alone; must not know what is in a message beyond its counts.
"""

from __future__ import annotations

from dataclasses import dataclass

from quire.simulation.overhead import Overhead


@dataclass(frozen=True, slots=True)
class StepCost:
    """The cost of a message in seconds: ``message_s`` per message, ``step_s`` per decode step,
    ``row_s`` per row of a step, ``context_token_s`` per token that a row attends to, ``prompt_s``
    per message that runs tokens of prompts, however few (a decode that was displaced begins again
    with one), ``prompt_token_s`` per such token, ``prompt_context_s`` per token that one of these
    attends to, ``pass_s``: the least time of a pass, which on a GPU is the time of reading the
    weights (tokens of prompts share the pass of the first step), ``moved_block_s`` per block whose
    move between device and host begins, ``disk_block_s`` per block that begins to move to the disk
    or from there (real engines do that beside their messages; here the message waits). Beside that,
    the work of control and the way, as ``Overhead`` has them: ``gap_s`` for a message to an idle
    engine and ``gap_row_s`` for each of its rows, ``behind_s`` and ``behind_row_s`` for one that
    waits behind another."""

    message_s: float = 0.0005
    step_s: float = 0.008
    row_s: float = 0.0002
    context_token_s: float = 0.0
    prompt_s: float = 0.0
    prompt_token_s: float = 0.0001
    moved_block_s: float = 0.0
    disk_block_s: float = 0.0
    gap_s: float = 0.0
    gap_row_s: float = 0.0
    behind_s: float = 0.0
    behind_row_s: float = 0.0
    prompt_context_s: float = 0.0
    pass_s: float = 0.0

    @property
    def overhead(self) -> Overhead:
        return Overhead(self.gap_s, self.gap_row_s, self.behind_s, self.behind_row_s)

    def passes_s(self, num_prompt: int, num_steps: int, num_first: int, num_rows: int) -> float:
        """The passes of a message: its prompts' tokens and its first step are one, with
        ``num_first`` rows; each further step is one, ``num_rows`` rows in all."""
        elapsed_s = 0.0
        if num_prompt:
            elapsed_s = self.prompt_s + self.prompt_token_s * num_prompt
        if not self.pass_s:
            return elapsed_s + self.step_s * num_steps + self.row_s * num_rows
        if not num_steps:
            return max(elapsed_s, self.pass_s) if num_prompt else 0.0
        first_s = elapsed_s + self.step_s + self.row_s * num_first
        rest_s = self.step_s * (num_steps - 1) + self.row_s * (num_rows - num_first)
        return max(first_s, self.pass_s) + max(rest_s, self.pass_s * (num_steps - 1))

    def token_s(self, batch: float) -> float:
        """The time of a token of an answer, if ``batch`` rows go on at a time and each message
        takes one step; without what it attends to."""
        message_s, row_s = self.message_s + self.behind_s, self.row_s + self.behind_row_s
        return max((message_s + self.step_s) / batch + row_s, (message_s + self.pass_s) / batch)
