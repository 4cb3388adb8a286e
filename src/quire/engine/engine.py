"""``Engine``: a model directory made into an ``EngineCore``.

Owns assembly and lifetime: weights, cache sizes, what the engine says of itself. The work is in
``quire.engine.step``.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch

from quire.core.batch import Batch, BatchResult, EngineInfo, LayerGroup, PoolSpec
from quire.core.config import EngineConfig
from quire.core.errors import ConfigError, EngineFault
from quire.core.traits import NODE_TRAITS, Trait
from quire.engine.attention.reference import TorchAttention
from quire.engine.config_reader import ConfigReader
from quire.engine.decode_stage import DecodeStage
from quire.engine.device import choose_device, choose_dtype, choose_num_threads, dtype_name
from quire.engine.embed_slots import EmbedSlots, TokenSlots
from quire.engine.forward_stage import ForwardLimits, ForwardStage
from quire.engine.kv_cache.page_tables import PageTables
from quire.engine.kv_cache.pool import BlockShape, KVPool
from quire.engine.layers.parameters import Parameters
from quire.engine.memory_operations import MemoryOperations
from quire.engine.model_directory import ModelDirectory, locate
from quire.engine.model_runner import ModelRunner
from quire.engine.models.decoder import CausalLM, DecoderConfig
from quire.engine.models.registry import Family, family_of
from quire.engine.sampling.grammar import GrammarCompiler
from quire.engine.sequence_sampler import SequenceSampler
from quire.engine.sequences import Sequences
from quire.engine.step import Step
from quire.engine.tokenizer import HuggingFaceTokenizer, load_tokenizer
from quire.engine.weights import Checkpoint, Progress, weights_digest

_NUM_AXES = 1
_EMBEDDING = "model.embed_tokens.weight"


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model with its weights in place, and what identifies it."""

    model: CausalLM
    config: DecoderConfig
    family: Family
    device: torch.device
    dtype: torch.dtype
    digest: str
    num_parameters: int
    max_model_len: int


class Engine:
    """Implements ``quire.core.interfaces.EngineCore`` in this process.

    Sets torch's thread count for the whole process (see ``EngineConfig.num_threads``), so a process
    should hold one engine. One caller at a time; deterministic.

    Raises:
        ModelError: the directory is missing, damaged, hostile or of an unknown architecture.
        ConfigError: what is asked for does not fit this machine.
    """

    def __init__(self, config: EngineConfig, progress: Progress | None = None) -> None:
        with torch.inference_mode():
            directory = locate(config.source)
            loaded = load_model(config, directory, progress)
            tokenizer = load_tokenizer(str(directory.path))
            torch.set_num_threads(choose_num_threads(config.num_threads, loaded.num_parameters))
            pool = _make_pool(config, loaded)
            self._info = _describe(config, loaded, pool)
            self._step: Step | None = _assemble(config, loaded, pool, tokenizer)

    @property
    def info(self) -> EngineInfo:
        return self._info

    def execute(self, batch: Batch) -> BatchResult:
        """Run one message.

        Raises:
            EngineFault: the message contradicts itself, or the device failed; the engine's memory
                can no longer be trusted and it answers no further message.
        """
        if self._step is None:
            raise EngineFault("the engine is closed or has failed before: start a new one")
        started = time.perf_counter()
        try:
            with torch.inference_mode():
                result = self._step.run(batch)
        except EngineFault:
            self.close()
            raise
        except Exception as exc:
            self.close()
            raise EngineFault(f"message {batch.step} failed in the engine: {exc!r}") from exc
        result.elapsed_s = time.perf_counter() - started
        return result

    def close(self) -> None:
        self._step = None


def load_model(
    config: EngineConfig, directory: ModelDirectory, progress: Progress | None = None
) -> LoadedModel:
    """Check the whole directory, then allocate and load the weights."""
    raw = directory.read_config()
    where = str(directory.path / "config.json")
    family = family_of(raw, where)
    shape = family.read(ConfigReader(raw, where))
    max_model_len = _max_model_len(config, shape)
    device = choose_device(config.device)
    blank = Parameters(torch.device("meta"), torch.float32)
    family.build(shape, blank)
    with Checkpoint(directory) as checkpoint:
        ignored = frozenset({"lm_head.weight"}) if shape.tie_embeddings else frozenset()
        checkpoint.check(blank.destinations, ignored)
        dtype = choose_dtype(
            config.dtype, device, checkpoint.dtype_of(_EMBEDDING), blank.num_elements
        )
        parameters = Parameters(device, dtype)
        model = family.build(shape, parameters)
        checkpoint.load(parameters.destinations, progress)
        layout = {"dtype": dtype_name(dtype), "page_size": config.page_size, "kv_layout": 1}
        digest = weights_digest(checkpoint.files, raw, layout)
    return LoadedModel(
        model, shape, family, device, dtype, digest, parameters.num_elements, max_model_len
    )


def _max_model_len(config: EngineConfig, shape: DecoderConfig) -> int:
    if config.max_model_len is None:
        return shape.max_positions
    if not 1 <= config.max_model_len <= shape.max_positions:
        raise ConfigError(
            f"max_model_len is {config.max_model_len}; this model has positions for 1 to "
            f"{shape.max_positions} tokens"
        )
    return config.max_model_len


def _make_pool(config: EngineConfig, loaded: LoadedModel) -> KVPool:
    shape = BlockShape(
        num_layers=loaded.config.num_layers,
        num_kv_heads=loaded.config.num_kv_heads,
        head_dim=loaded.config.head_dim,
        page_size=config.page_size,
        dtype=loaded.dtype,
    )
    num_blocks = config.num_blocks or config.kv_cache_bytes // shape.bytes_per_block
    if num_blocks < 1:
        raise ConfigError(
            f"kv_cache_bytes is {config.kv_cache_bytes}, but one page of {config.page_size} tokens "
            f"takes {shape.bytes_per_block}: raise it"
        )
    num_host_blocks = config.host_cache_bytes // shape.bytes_per_block
    try:
        return KVPool(
            shape,
            num_blocks=num_blocks,
            num_host_blocks=num_host_blocks,
            num_scratch=config.max_batch_tokens,
            num_axes=_NUM_AXES,
            device=loaded.device,
        )
    except (RuntimeError, MemoryError) as exc:
        raise ConfigError(
            f"{num_blocks} device and {num_host_blocks} host blocks of {shape.bytes_per_block} "
            f"bytes cannot be allocated ({exc}): lower kv_cache_bytes or host_cache_bytes"
        ) from exc


def _describe(config: EngineConfig, loaded: LoadedModel, pool: KVPool) -> EngineInfo:
    group = LayerGroup(
        num_blocks=pool.num_blocks,
        num_host_blocks=pool.num_host_blocks,
        bytes_per_block=pool.shape.bytes_per_block,
    )
    return EngineInfo(
        model=config.name,
        family=loaded.family.name,
        digest=loaded.digest,
        vocab_size=loaded.config.vocab_size,
        hidden_size=loaded.config.hidden_size,
        num_layers=loaded.config.num_layers,
        max_model_len=loaded.max_model_len,
        dtype=dtype_name(loaded.dtype),
        device=str(loaded.device),
        backend=TorchAttention.name,
        num_parameters=loaded.num_parameters,
        pool=PoolSpec(
            page_size=config.page_size,
            groups=(group,),
            num_embeds=config.num_embeds,
            num_token_slots=config.num_token_slots,
            max_sequences=config.max_sequences,
            max_batch_tokens=config.max_batch_tokens,
        ),
        traits=sorted(trait.value for trait in set(Trait) - NODE_TRAITS),
        extra={"num_threads": torch.get_num_threads()},
    )


def _assemble(
    config: EngineConfig, loaded: LoadedModel, pool: KVPool, tokenizer: HuggingFaceTokenizer
) -> Step:
    device, vocab_size = loaded.device, loaded.config.vocab_size
    tables, sequences = PageTables(), Sequences(config.max_sequences)
    embeds = EmbedSlots(config.num_embeds, loaded.config.hidden_size, device, loaded.dtype)
    token_slots = TokenSlots(config.num_token_slots)
    attention = TorchAttention(device, loaded.dtype, pool.null_slot)
    runner = ModelRunner(loaded.model, pool, attention, embeds, device)
    limits = ForwardLimits(vocab_size, loaded.max_model_len, config.max_batch_tokens, _NUM_AXES)
    return Step(
        MemoryOperations(
            pool, tables, sequences, tokenizer, GrammarCompiler(tokenizer, vocab_size), vocab_size
        ),
        ForwardStage(pool, tables, sequences, embeds, token_slots, limits),
        DecodeStage(
            runner,
            tables,
            sequences,
            SequenceSampler(sequences, tokenizer, vocab_size, device),
            loaded.max_model_len,
        ),
        runner,
        sequences,
        embeds,
        token_slots,
        vocab_size,
        device,
    )
