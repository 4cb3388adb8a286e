"""The engines of a simulation, and the cost of a program on them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from math import isfinite

from quire.core.errors import ConfigError
from quire.core.ids import EngineId
from quire.simulation.light_engine import LightEngine, light_pool
from quire.simulation.player import VOCABULARY
from quire.simulation.shell import VirtualShell
from quire.simulation.step_cost import StepCost
from quire.simulation.workloads.plan import ProgramPlan

MODEL = "light"
MAX_BLOCKS = 1 << 26
"""The most blocks of one tier: control keeps figures of each."""
_MAX_ENGINES = 1 << 16
_MAX_SEQUENCES = 1 << 20

IDENTICAL_STEPS = StepCost(message_s=0.0, step_s=0.02, row_s=0.0, prompt_token_s=0.0)
"""Every message takes the same time, whatever is in it (Autellix, Fig. 18)."""


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """``num_engines`` equal engines. ``kv_tokens``, ``host_tokens`` and ``disk_tokens``: the tokens
    that the cache of one holds on each tier; ``max_sequences``: decodes that run at once on one.
    ``num_layers`` and ``token_bytes``: the layers of K and V, and their size for a token; they
    matter only if K and V are sent.

    Raises:
        ConfigError: a figure that no engine can have.
    """

    num_engines: int = 1
    max_sequences: int = 64
    kv_tokens: int = 500_000
    host_tokens: int = 0
    disk_tokens: int = 0
    max_batch_tokens: int = 512
    page_size: int = 16
    cost: StepCost = field(default_factory=StepCost)
    num_layers: int = 32
    token_bytes: int = 4096

    def __post_init__(self) -> None:
        most_tokens = MAX_BLOCKS * self.page_size
        for name, least, most in (
            ("page_size", 1, None),
            ("num_engines", 1, _MAX_ENGINES),
            ("max_sequences", 1, _MAX_SEQUENCES),
            ("kv_tokens", self.page_size, most_tokens),
            ("host_tokens", 0, most_tokens),
            ("disk_tokens", 0, most_tokens),
            ("max_batch_tokens", 1, None),
            ("num_layers", 1, None),
            ("token_bytes", 1, None),
        ):
            value = getattr(self, name)
            if value < least:
                raise ConfigError(f"{name} is {value}: choose at least {least}")
            if most is not None and value > most:
                raise ConfigError(f"{name} is {value}: choose at most {most}")
        for part in fields(self.cost):
            value = getattr(self.cost, part.name)
            if not (isfinite(value) and value >= 0):
                raise ConfigError(f"cost {part.name} is {value}: choose seconds, 0 or more")
        cost = self.cost
        if not (cost.message_s or cost.step_s or cost.row_s or cost.pass_s):
            raise ConfigError(
                "message_s, step_s, row_s and pass_s of the cost are all 0: a step has to take time"
            )

    def start(self, shell: VirtualShell) -> None:
        """Bring the engines up."""
        for number in range(self.num_engines):
            name = EngineId(f"{MODEL}#{number}")
            shell.start_engine(name, self.engine(), overhead=self.cost.overhead)

    def engine(self, data_address: str = "") -> LightEngine:
        """Make one of the engines. ``data_address``: the address to which others send K and V."""
        pool = light_pool(
            num_blocks=self.kv_tokens // self.page_size,
            num_host_blocks=self.host_tokens // self.page_size,
            num_disk_blocks=self.disk_tokens // self.page_size,
            page_size=self.page_size,
            max_sequences=self.max_sequences,
            max_batch_tokens=self.max_batch_tokens,
            bytes_per_block=self.token_bytes * self.page_size,
        )
        return LightEngine(
            pool,
            self.cost,
            model=MODEL,
            vocab_size=VOCABULARY,
            num_layers=self.num_layers,
            data_address=data_address,
        )

    @property
    def prompt_weight(self) -> float:
        """The cost of a prompt's token as a multiple of an answer's, in a full batch."""
        return self.cost.prompt_token_s / self.cost.token_s(self.max_sequences)

    def capacity(self, plans: Sequence[ProgramPlan]) -> float:
        """An estimate of how many such programs a second the engines can serve at most: batches are
        as full as sequences and cache allow, the prefix cache keeps what programs have, and each
        message takes one step."""
        cost = self.cost
        num_output = sum(plan.num_output_tokens for plan in plans)
        num_attended = sum(
            call.num_output * (length + call.num_output / 2)
            for plan in plans
            for call, length in zip(plan.calls, plan.prompt_lengths, strict=True)
        )
        mean_context = num_attended / num_output
        batch = max(1.0, min(self.max_sequences, self.kv_tokens / mean_context))
        seconds = num_output * cost.token_s(batch)
        seconds += cost.context_token_s * num_attended
        seconds += cost.prompt_context_s * sum(
            call.num_prompt * (length - call.num_prompt / 2)
            for plan in plans
            for call, length in zip(plan.calls, plan.prompt_lengths, strict=True)
        )
        seconds += cost.prompt_token_s * sum(plan.num_prompt_tokens for plan in plans)
        seconds += cost.prompt_s * sum(len(plan.calls) for plan in plans)
        return self.num_engines * len(plans) / seconds


def costs_named(given: Sequence[str], base: StepCost) -> StepCost:
    """``base`` with the costs in ``given``, as NAME=SECONDS.

    Raises:
        ConfigError: an unknown name, or no number.
    """
    names = [part.name for part in fields(StepCost)]
    values: dict[str, float] = {}
    for text in given:
        name, _, value = text.partition("=")
        if name not in names:
            raise ConfigError(
                f"cost {text!r}: no cost is called {name!r}: choose from {', '.join(names)}"
            )
        try:
            values[name] = float(value)
        except ValueError:
            raise ConfigError(f"cost {text!r}: give seconds, for example {name}=0.01") from None
    return replace(base, **values)
