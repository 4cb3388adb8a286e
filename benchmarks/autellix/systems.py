"""States the modelled engine of the load curves, and the systems that are compared on it.

The engine is Llama 3.1 8B in bf16 on an A10 with 24 GB, by its figures: 16 GB of weights are read
at 500 GB/s for a step, and 131,072 bytes of cache for each token that a sequence attends to; a
token of a prompt takes 16 GFLOP at half of 125 TFLOP/s; a message takes 2 ms beside the model.
Weights leave room for 52,000 tokens. That is the paper's smallest model on a card where memory is
full with ten conversations, so that a trace of some hundred programs is long beside a batch. At
most 32 sequences run at once. Messages take up to eight steps (the paper's multi-step scheduling),
and prompts are computed beside decodes in chunks of about 500 tokens, vLLM's default. Pages of 64
tokens halve what the simulation takes; with 16, figures differ by 2 %.

The systems of the paper let in by call and pause nobody. ``quire`` is what ``quire serve`` does:
programs that do not fit together are paused. So are the bounds, which know what no node knows, and
``fcfs, pausing``, the best that does not look at lengths where all are about equal (``agents``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

import benchmarks.options  # noqa: F401 - before control is imported, whose form it chooses
from quire.core.scheduler_config import PausingConfig, SchedulerConfig
from quire.simulation.engines import EngineSpec
from quire.simulation.step_cost import StepCost
from quire.simulation.workloads.plan import CallPlan, ProgramPlan

ENGINE = EngineSpec(
    max_sequences=32,
    kv_tokens=52_000,
    page_size=64,
    cost=StepCost(
        message_s=0.002,
        step_s=0.032,
        row_s=0.0,
        context_token_s=2.6e-7,
        prompt_token_s=2.6e-4,
    ),
)
MESSAGE_S = 0.35
"""Eight steps of a full batch."""
CHUNK_STEPS = 3.0
"""A chunk takes as long as so many steps."""

_NEVER = PausingConfig(above=0.0)


@dataclass(frozen=True, slots=True)
class System:
    """One system. ``is_caching``: whether what an earlier call of the program has computed can be
    found."""

    scheduler: SchedulerConfig
    is_caching: bool = True


def _system(policy: str, *, is_pausing: bool = False, is_caching: bool = True) -> System:
    scheduler = SchedulerConfig(policy=policy, step_quantum_s=MESSAGE_S, chunk_steps=CHUNK_STEPS)
    return System(
        scheduler if is_pausing else replace(scheduler, pausing=_NEVER), is_caching=is_caching
    )


SYSTEMS: Mapping[str, System] = MappingProxyType(
    {
        "fcfs, no cache": _system("fcfs", is_caching=False),
        "fcfs": _system("fcfs"),
        "fcfs, pausing": _system("fcfs", is_pausing=True),
        "mlfq": _system("mlfq"),
        "plas": _system("plas"),
        "atlas": _system("atlas"),
        "quire": _system("quire", is_pausing=True),
        "gittins": _system("gittins", is_pausing=True),
        "srpt": _system("srpt", is_pausing=True),
    }
)
"""By what tables call them. The first two are vLLM without and with its prefix cache, as the paper
compares them (*vLLM* and *vLLM-opt*)."""


def uncached(plan: ProgramPlan) -> ProgramPlan:
    """Return the same calls, each with a prompt of its own that nothing else has: the program's
    work for engines that keep nothing between calls."""
    return ProgramPlan(
        plan.kind,
        tuple(
            CallPlan(
                length,
                call.num_output,
                after=call.after,
                wait_s=call.wait_s,
                thread=call.thread,
                member=call.member,
            )
            for call, length in zip(plan.calls, plan.prompt_lengths, strict=True)
        ),
    )
