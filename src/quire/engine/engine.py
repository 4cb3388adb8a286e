"""``Engine``: makes an ``EngineCore`` of a model directory.

Owns assembly and lifetime: weights, cache sizes, the engine's description. Messages are executed in
``quire.engine.step``.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import time
from collections.abc import Callable
from typing import TypeVar

import torch

from quire.core.batch import Batch
from quire.core.batch_result import BatchResult, EngineReport
from quire.core.config import EngineConfig
from quire.core.engine_info import EngineInfo, LayerGroup, PoolSpec
from quire.core.errors import EngineFault
from quire.core.kv_transport import KVTransport
from quire.core.traits import MODEL_TRAITS, Trait
from quire.engine.backend import NUM_AXES, Backend, choose_backend
from quire.engine.checkpoint.model_directory import locate
from quire.engine.device import choose_num_threads, dtype_name
from quire.engine.disk_transfers import DiskTransfers
from quire.engine.embed_slots import TokenSlots
from quire.engine.exchange.choice import make_exchange
from quire.engine.exchange.exchange import EngineExchange
from quire.engine.kv_cache.page_tables import PageTables
from quire.engine.kv_cache.pool import BlockShape
from quire.engine.loading import LoadedModel, load_model
from quire.engine.model_runner import ModelRunner
from quire.engine.parallel.division import check_division
from quire.engine.parallel.group import RankGroup
from quire.engine.parallel.leading import lead
from quire.engine.sampling.grammar_hosts import GrammarHosts
from quire.engine.sequence_sampler import SequenceSampler
from quire.engine.sequences import Sequences
from quire.engine.stages.decode import DecodeStage
from quire.engine.stages.forward import ForwardLimits, ForwardStage
from quire.engine.stages.memory import MemoryOperations
from quire.engine.step import StepExecutor
from quire.engine.tokenizer import HuggingFaceTokenizer, load_tokenizer
from quire.engine.torch_backend import TorchBackend
from quire.engine.transfers import TransferQueue
from quire.engine.vision.encoder import ImageEncoder
from quire.engine.weights import Progress

T = TypeVar("T")

_LAYOUT_VERSION = 1
"""Increased when a backend stores its blocks in another way."""


class Engine:
    """Implements ``quire.core.interfaces.EngineCore`` in this process.

    Sets torch's thread count for the whole process (see ``EngineConfig.num_threads``), so a process
    should hold one engine. One caller at a time; deterministic.

    With ``tensor_parallel`` above 1 this process is rank 0 and starts the others. ``ranks``: reuse
    these ranks, replacing their model; they keep running when the engine is closed. ``transport``:
    takes K and V to other engines and brings theirs; the engine closes it.

    Raises:
        ModelError: the directory is missing, damaged, hostile or of an unknown architecture.
        ConfigError: the configuration does not fit this machine.
    """

    def __init__(
        self,
        config: EngineConfig,
        progress: Progress | None = None,
        *,
        ranks: RankGroup | None = None,
        transport: KVTransport | None = None,
    ) -> None:
        self._transport = transport
        self._own_ranks: RankGroup | None = None
        self._exchange: EngineExchange | None = None
        self._disk: DiskTransfers | None = None
        self._images: ImageEncoder | None = None
        self._grammars: GrammarHosts | None = None
        if config.tensor_parallel > 1:
            check_division(config, locate(config.source))
        if config.tensor_parallel > 1 and ranks is None:
            ranks = self._own_ranks = RankGroup.start(config)
        try:
            self._load(config, progress, ranks, transport)
        except BaseException:
            self.close()
            raise

    def _load(
        self,
        config: EngineConfig,
        progress: Progress | None,
        ranks: RankGroup | None,
        transport: KVTransport | None,
    ) -> None:
        with torch.inference_mode():
            directory = locate(config.source)
            backend: Backend = TorchBackend()
            runner: ModelRunner
            if ranks is None:
                loaded = load_model(config, directory, progress)
                torch.set_num_threads(
                    choose_num_threads(config.num_threads, loaded.num_parameters, config.replicas)
                )
                backend = choose_backend(config, loaded)
                runner = backend.make_runner(config, loaded)
            else:
                loaded, runner = lead(config, directory, progress, ranks)
            tokenizer = load_tokenizer(str(directory.path))
            images = self._images = _image_encoder(config, loaded)
            grammars = self._grammars = GrammarHosts(str(directory.path), loaded.config.vocab_size)
            self._device = loaded.device
            exchange = self._exchange = make_exchange(config, loaded, runner, transport)
            disk = self._disk = DiskTransfers.open(config, runner.pool)
            self._info = _describe(config, loaded, backend, runner, exchange, disk, ranks, images)
            self._transfers = TransferQueue(runner.pool)
            self._step: StepExecutor | None = _assemble(
                config, loaded, runner, self._transfers, disk, exchange, tokenizer, images, grammars
            )

    @property
    def info(self) -> EngineInfo:
        return self._info

    def execute(self, batch: Batch) -> BatchResult:
        """Run one message.

        Raises:
            EngineFault: the message contradicts itself, or the device failed; the engine's memory
                can no longer be trusted and it answers no further message.
        """
        step = self._step
        if step is None:
            raise EngineFault("the engine is closed or has failed before: start a new one")
        started = time.perf_counter()
        result = self._guarded(f"message {batch.serial}", lambda: step.run(batch))
        result.elapsed_s = time.perf_counter() - started
        if self._exchange is not None:
            self._exchange.message_ended()
        return result

    def transfer(self) -> EngineReport | None:
        """Copy the next blocks of transfers in progress, between messages; ends of exchanges come
        first.

        Raises:
            EngineFault: the device failed, as in ``execute``.
        """
        if self._step is None:
            return None
        if self._exchange is not None and (report := self._exchange.take_report()) is not None:
            return report
        if self._disk is not None and (ended := self._disk.take_ended()) is not None:
            return ended
        if not self._transfers:
            return None
        started = time.perf_counter()
        ended = self._guarded("a transfer", self._transfers.go_on)
        if ended is not None:
            ended.elapsed_s = time.perf_counter() - started
        return ended

    def _guarded(self, what: str, work: Callable[[], T]) -> T:
        """Run ``work``; any error in it means that the engine's memory can no longer be trusted."""
        try:
            with torch.inference_mode():
                done = work()
            if self._device.type == "cuda":  # else its time would count for the next message
                torch.cuda.synchronize(self._device)
        except EngineFault:
            self.close()
            raise
        except Exception as exc:
            self.close()
            raise EngineFault(f"{what} failed in the engine: {exc!r}") from exc
        return done

    def wake_by(self, ring: Callable[[], None]) -> None:
        """See ``EngineCore``."""
        if self._exchange is not None:
            self._exchange.wake_by(ring)
        if self._disk is not None:
            self._disk.wake_by(ring)

    def start_grammars(self) -> None:
        """Start the grammar process in advance, so that the first grammar need not wait for it."""
        if self._grammars is not None:
            self._grammars.start()

    def close(self) -> None:
        self._step = None
        if self._exchange is not None:
            self._exchange.close()
        if self._disk is not None:
            self._disk.close()
        if self._transport is not None:
            self._transport.close()
        if self._images is not None:
            self._images.close()
        if self._grammars is not None:
            self._grammars.close()
        if self._own_ranks is not None:
            self._own_ranks.close()


def _describe(
    config: EngineConfig,
    loaded: LoadedModel,
    backend: Backend,
    runner: ModelRunner,
    exchange: EngineExchange,
    disk: DiskTransfers | None,
    ranks: RankGroup | None,
    images: ImageEncoder | None,
) -> EngineInfo:
    pool = runner.pool
    adapters = () if loaded.adapters is None else loaded.adapters.infos
    missing = set() if adapters else {Trait.ADAPTER}
    if not runner.serves_scores:
        missing.add(Trait.SCORES)
    if images is None:
        missing.add(Trait.INPUT_IMAGE)
    group = LayerGroup(
        num_blocks=pool.num_blocks,
        num_host_blocks=pool.num_host_blocks,
        num_disk_blocks=0 if disk is None else disk.num_blocks,
        bytes_per_block=pool.shape.bytes_per_block,
    )
    return EngineInfo(
        model=config.name,
        family=loaded.family.name,
        content=loaded.content,
        layout=_layout(config, backend, pool.shape),
        vocab_size=loaded.config.vocab_size,
        hidden_size=loaded.config.hidden_size,
        num_layers=loaded.config.num_layers,
        max_model_len=loaded.max_model_len,
        dtype=dtype_name(loaded.dtype),
        device=str(loaded.device),
        backend=backend.name,
        num_parameters=loaded.num_parameters,
        pool=PoolSpec(
            page_size=config.page_size,
            groups=(group,),
            num_embeds=config.num_embeds,
            num_token_slots=config.num_token_slots,
            max_sequences=config.max_sequences,
            max_batch_tokens=config.max_batch_tokens,
        ),
        traits=sorted(trait.value for trait in MODEL_TRAITS - missing),
        extra={
            **runner.details,
            "tensor_parallel": config.tensor_parallel,
            "rank_pids": [] if ranks is None else ranks.pids,
        },
        adapters=adapters,
        images=None if images is None else images.info,
        data_address=exchange.address,
        data_salt=secrets.token_bytes(16),
    )


def _layout(config: EngineConfig, backend: Backend, shape: BlockShape) -> str:
    """The value of ``EngineInfo.layout``. ``shape``: the memory of one rank."""
    parts = [
        _LAYOUT_VERSION,
        backend.name,
        config.page_size,
        dtype_name(shape.dtype),
        shape.num_kv_heads,
        shape.head_dim,
        config.tensor_parallel,
    ]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _image_encoder(config: EngineConfig, loaded: LoadedModel) -> ImageEncoder | None:
    if loaded.vision is None:
        return None
    tower, processor = loaded.vision
    num_threads = choose_num_threads(config.num_threads, loaded.num_parameters, config.replicas)
    return ImageEncoder(tower, processor, loaded.device, num_threads)


def _assemble(
    config: EngineConfig,
    loaded: LoadedModel,
    runner: ModelRunner,
    transfers: TransferQueue,
    disk: DiskTransfers | None,
    exchange: EngineExchange,
    tokenizer: HuggingFaceTokenizer,
    images: ImageEncoder | None,
    grammars: GrammarHosts,
) -> StepExecutor:
    device, vocab_size = loaded.device, loaded.config.vocab_size
    pool, embeds = runner.pool, runner.embeds
    tables, sequences = PageTables(), Sequences(config.max_sequences)
    token_slots = TokenSlots(config.num_token_slots)
    limits = ForwardLimits(
        vocab_size,
        loaded.max_model_len,
        config.max_batch_tokens,
        NUM_AXES,
        len(config.adapters),
        runner.serves_scores,
    )
    return StepExecutor(
        MemoryOperations(
            pool,
            transfers,
            disk,
            exchange,
            tables,
            sequences,
            tokenizer,
            grammars,
            vocab_size,
            len(config.adapters),
        ),
        ForwardStage(pool, tables, sequences, embeds, token_slots, limits),
        DecodeStage(
            runner,
            tables,
            sequences,
            SequenceSampler(sequences, tokenizer, grammars, vocab_size, device),
            loaded.max_model_len,
        ),
        runner,
        sequences,
        embeds,
        token_slots,
        vocab_size,
        device,
        images,
    )
