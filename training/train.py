"""Runs the training loop: schedule, checkpoints, held-out scores on the way.

A run is a folder.  ``plan.json`` in it is read again on every start, so that a stopped run goes on
with other family weights or another number of steps.
"""

import json
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor

from training import tokenizer as tokenizers
from training.batches import batch_of_step
from training.growth import deepen
from training.model import Model, ModelShape, llama_name, weighted_loss
from training.optim import Optimizer, Rates

_log = logging.getLogger(__name__)

DEFAULT_PLAN = Path(__file__).with_name("plan.json")
EMA_DECAY = 0.99


@dataclass(frozen=True, slots=True)
class Stage:
    """Family weights that hold from a step on."""

    first_step: int
    weights: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that decides what a run computes.

    ``schedule`` lists (step, scale of the learning rates) with rising steps; between two of them
    the scale changes linearly, and after the last it stays. ``shape`` has the fields of
    ``ModelShape`` that differ from the shipped model's. ``dtype`` is that of activations
    and of the optimiser's iteration: ``float32`` is far faster where bf16 is slow.
    """

    num_steps: int
    stages: tuple[Stage, ...]
    schedule: tuple[tuple[int, float], ...]
    seed: int = 0
    num_tokens: int = 6144
    rates: Rates = field(default_factory=Rates)
    shape: Mapping[str, int] = field(default_factory=dict)
    dtype: Literal["bfloat16", "float32"] = "bfloat16"

    @classmethod
    def read(cls, path: Path) -> "Plan":
        raw = json.loads(path.read_text())
        stages = tuple(Stage(**stage) for stage in raw.pop("stages"))
        schedule = tuple((step, scale) for step, scale in raw.pop("schedule"))
        return cls(stages=stages, schedule=schedule, rates=Rates(**raw.pop("rates", {})), **raw)

    def weights_at(self, step: int) -> Mapping[str, float]:
        """Return the weights of the last stage that has begun."""
        begun = [stage for stage in self.stages if stage.first_step <= step]
        return max(begun, key=lambda stage: stage.first_step).weights

    def scale_at(self, step: int) -> float:
        """Return the scale of the learning rates, interpolated from the schedule."""
        for (start, first), (end, last) in pairwise(self.schedule):
            if start <= step < end:
                return first + (last - first) * (step - start) / (end - start)
        return self.schedule[-1][1]


class Trainer:
    """One run: the model, its optimiser, a running mean of the weights and the step count."""

    def __init__(self, plan: Plan, folder: Path) -> None:
        torch.manual_seed(plan.seed)
        self.plan, self.folder = plan, folder
        self.tokenizer: Tokenizer = tokenizers.load(folder / "tokenizer.json")
        shape = ModelShape(self.tokenizer.get_vocab_size(), **plan.shape)
        dtype = getattr(torch, plan.dtype)
        self.model = Model(shape, dtype)
        self.optimizer = Optimizer(self.model, plan.rates, dtype)
        self.mean = {n: p.detach().clone() for n, p in self.model.named_parameters()}
        self.step = 0

    @property
    def checkpoint(self) -> Path:
        return self.folder / "checkpoint.pt"

    def save(self) -> None:
        """Replace the checkpoint in one move."""
        state = {
            "model": self.model.state_dict(),
            "mean": self.mean,
            "optimizer": self.optimizer.state_dict(),
            "step": self.step,
        }
        partial = self.checkpoint.with_suffix(".partial")
        torch.save(state, partial)
        partial.replace(self.checkpoint)

    def begin_with(self, directory: Path) -> None:
        """Take the weights of an exported model; the optimiser starts anew. Where the plan's shape
        has more layers, layers are added that change nothing yet.

        Raises:
            ValueError: its tokenizer is another one than the run's, or it has more layers.
        """
        tokenizer = tokenizers.load(directory / "tokenizer.json")
        if tokenizer.get_vocab() != self.tokenizer.get_vocab():
            raise ValueError(
                f"{self.folder} has another tokenizer than {directory}: begin a new run"
            )
        tensors = deepen(load_file(directory / "model.safetensors"), self.model.shape.num_layers)
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                parameter.copy_(tensors[llama_name(name)])
                self.mean[name].copy_(parameter)

    def resume(self) -> bool:
        """Continue from the checkpoint; whether there is one."""
        if not self.checkpoint.exists():
            return False
        state: dict[str, Any] = torch.load(self.checkpoint)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        for name, value in state["mean"].items():
            self.mean[name].copy_(value)
        self.step = state["step"]
        return True

    def advance(self) -> Tensor:
        """Train for one step; return the mean loss over what the model writes."""
        plan = self.plan
        weights = plan.weights_at(self.step)
        batch = batch_of_step(
            self.tokenizer,
            plan.seed,
            self.step,
            weights,
            plan.num_tokens,
            self.model.shape.max_positions,
        )
        hidden_ND = self.model(batch.tokens_N, batch.positions_N, batch.groups)
        loss, answers = weighted_loss(self.model, hidden_ND, batch.targets_N, batch.weights_N)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step(plan.scale_at(self.step))
        self.step += 1
        decay = min(EMA_DECAY, self.step / (self.step + 10))
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                self.mean[name].lerp_(parameter, 1 - decay)
        return answers

    def run(self, save_every_s: float = 120.0) -> None:
        """Train to the end of the plan, saving now and then."""
        self.model.compile_layers()
        saved_at, losses, started, first = time.monotonic(), [], time.monotonic(), self.step
        while self.step < self.plan.num_steps:
            losses.append(float(self.advance()))
            if self.step % 20 == 0:
                rate = (self.step - first) * self.plan.num_tokens / (time.monotonic() - started)
                self._report(sum(losses) / len(losses), rate)
                losses.clear()
            if time.monotonic() - saved_at > save_every_s:
                self.save()
                saved_at = time.monotonic()
        self.save()

    def _report(self, loss: float, tokens_per_s: float) -> None:
        total = self.plan.num_steps
        bar = "#" * round(24 * self.step / total)
        left_min = (total - self.step) * self.plan.num_tokens / tokens_per_s / 60
        _log.info(
            "[%-24s] step %d/%d  loss %.4f  %.0f tokens/s  %.0f min left",
            *(bar, self.step, total, loss, tokens_per_s, left_min),
        )
