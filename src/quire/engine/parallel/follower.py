"""A following rank: executes rank 0's calls on its part of the model."""

from __future__ import annotations

import torch
from torch import Tensor

from quire.core.config import EngineConfig
from quire.core.errors import QuireError
from quire.engine.attention.backend import DecodePlan
from quire.engine.checkpoint.model_directory import locate
from quire.engine.device import choose_num_threads
from quire.engine.kv_cache.torch_pool import TorchKVPool
from quire.engine.loading import LoadedModel, load_model
from quire.engine.parallel import messages as m
from quire.engine.parallel.collectives import Collectives
from quire.engine.parallel.group import local_engine_config
from quire.engine.torch_backend import TorchBackend
from quire.engine.torch_runner import TorchRunner


class FollowingRank:
    """Executes calls in order. Their results matter on rank 0 only, and are dropped here.

    Received arrays are read-only, which torch does not accept, so they are copied.
    """

    def __init__(self, collectives: Collectives, device: torch.device) -> None:
        self._collectives = collectives
        self._device = device
        self._loaded: LoadedModel | None = None
        self._runner: TorchRunner | None = None
        self._plan: DecodePlan | None = None

    @property
    def pool(self) -> TorchKVPool:
        """The pool of the model that is loaded."""
        assert self._runner is not None, "no model is loaded"
        return self._runner.pool

    def execute(self, call: m.AnyCall) -> m.Answer | None:
        """Execute ``call``; returns its answer, if it has one."""
        if isinstance(call, m.Load):
            return self._load(call.config)
        runner = self._runner
        assert runner is not None, f"{type(call).__name__} before a model was loaded"
        match call:
            case m.RunDecode(tokens=tokens, positions=positions, slots=slots):
                assert self._plan is not None
                self._plan.advance(slots, positions)
                runner.run_decode(self._plan, tokens.copy(), positions, slots.copy())
            case m.Logits(num_rows=num_rows):
                runner.logits(self._collectives.share(self._empty(num_rows)))
            case m.KeepRows(rows=rows):
                assert self._plan is not None
                self._plan.keep(rows)
            case m.PlanDecode(rows=rows, num_steps=num_steps):
                self._plan = runner.plan_decode(m.unpack_rows(rows, runner.pool), num_steps)
            case m.RunRows(rows=rows, tokens=tokens, embeds=embeds):
                runner.run_rows(m.unpack_rows(rows, runner.pool), tokens.copy(), embeds)
            case m.RankEmbed(tokens=tokens):
                runner.embed(tokens.copy())
            case m.WriteEmbeds(embeds=embeds):
                runner.embeds.write(embeds, self._collectives.share(self._empty(len(embeds))))
            case m.RankCopySlots(source=source, target=target):
                runner.pool.copy_slots(source, target)
            case m.RankReposition(slots=slots, positions=positions):
                runner.pool.reposition(slots, positions)
            case m.RankSwapOut(blocks=blocks, host_blocks=host_blocks):
                runner.pool.swap_out(blocks, host_blocks)
            case m.RankSwapIn(host_blocks=host_blocks, blocks=blocks):
                runner.pool.swap_in(host_blocks, blocks)
            case _:
                raise AssertionError(f"{type(call).__name__} is not for a rank at work")
        return None

    def _load(self, config: EngineConfig) -> m.Loaded:
        self._loaded = self._runner = self._plan = None
        config = local_engine_config(config, self._device)
        try:
            loaded = load_model(config, locate(config.source), ranks=self._collectives)
            torch.set_num_threads(
                choose_num_threads(config.num_threads, loaded.num_parameters, config.replicas)
            )
            runner = TorchBackend().make_runner(config, loaded)
        except QuireError as exc:
            return m.Loaded(error=exc.record())
        self._loaded, self._runner = loaded, runner
        return loaded_answer(loaded, runner)

    def _empty(self, num_rows: int) -> Tensor:
        """A buffer for hidden states that rank 0 broadcasts."""
        loaded = self._loaded
        assert loaded is not None
        size = (num_rows, loaded.config.hidden_size)
        return torch.empty(size, dtype=loaded.dtype, device=self._device)


def loaded_answer(loaded: LoadedModel, runner: TorchRunner) -> m.Loaded:
    """The properties on which all ranks of a model must agree."""
    pool = runner.pool
    adapters = () if loaded.adapters is None else loaded.adapters.infos
    return m.Loaded(
        content=loaded.content,
        adapter_digests=tuple(adapter.digest for adapter in adapters),
        num_blocks=pool.num_blocks,
        num_host_blocks=pool.num_host_blocks,
    )
