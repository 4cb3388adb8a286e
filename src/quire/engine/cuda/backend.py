"""The CUDA backend: decides whether this machine can use it, and builds it from its parts."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

import torch

from quire.core.config import DEFAULT_CACHE_BYTES, EngineConfig
from quire.engine.cuda.attention import CudaAttention
from quire.engine.cuda.decode_loop import DecodeLoop
from quire.engine.cuda.decode_state import DecodeState
from quire.engine.cuda.graphs import CudaGraphRecorder, GraphRecorder, bucket_sizes
from quire.engine.cuda.kv_pool import CudaKVPool
from quire.engine.cuda.linears import has_float8_products
from quire.engine.cuda.model_forms import Forms, adapt, projections
from quire.engine.cuda.optional import triton_missing
from quire.engine.cuda.runner import CudaRunner, on_device
from quire.engine.cuda.static_attention import AttentionShape, StaticAttention
from quire.engine.cuda.stored_scales import stored_scales, stores_float8
from quire.engine.cuda.triton_attention import TritonAttention
from quire.engine.embed_slots import EmbedSlots
from quire.engine.kv_cache.pool import BlockShape
from quire.engine.layers.key_turn import KeyTurn
from quire.engine.loading import LoadedModel
from quire.engine.models.decoder import Decoder

logger = logging.getLogger(__name__)

_LEAST_CAPABILITY = (8, 0)
_FLOAT8_CAPABILITY = (8, 9)
_MAX_STEPS = 32
"""Steps of a message that the loop's memory holds; longer messages run step by step."""

_MAX_STOPS = 16
_MAX_ENTRIES = 1 << 22
"""Page entries of all rows in the loop's memory, at 12 bytes each."""

_RESERVED = 0.1
"""The share of device memory that a cache of unspecified size leaves free, for activations,
sampling over whole vocabularies, FlashInfer's workspace and recorded steps."""


class CudaBackend:
    """Implements ``quire.engine.backend.Backend``."""

    name = "cuda"
    serves_adapters = False

    def unsupported(self, config: EngineConfig, loaded: LoadedModel) -> str | None:
        device = loaded.device
        if device.type != "cuda":
            return _why_no_device(config)
        if reason := _too_old(config, device):
            return reason
        if config.tensor_parallel > 1:
            return "it runs on one device, not tensor parallel: choose backend torch"
        if not isinstance(loaded.model, Decoder):
            return f"{type(loaded.model).__name__} is not a Decoder: choose backend torch"
        return triton_missing()

    def make_runner(self, config: EngineConfig, loaded: LoadedModel) -> CudaRunner:
        with on_device(loaded.device):
            adapt_weights(config, loaded)
            return make_runner(config, loaded, CudaGraphRecorder(loaded.device))


def _too_old(config: EngineConfig, device: torch.device) -> str | None:
    capability = torch.cuda.get_device_capability(device)
    name, have = torch.cuda.get_device_name(device), ".".join(map(str, capability))
    if capability < _LEAST_CAPABILITY:
        return (
            f"{name} has compute capability {have}, and 8.0 (Ampere) is the least that its "
            "kernels are written for: choose backend torch"
        )
    if config.weights == "float8" and capability < _FLOAT8_CAPABILITY:
        return (
            f"{name} has compute capability {have}, and weights float8 need 8.9 (Ada) at least: "
            "choose weights auto"
        )
    return None


def adapt_weights(config: EngineConfig, loaded: LoadedModel) -> None:
    """Convert the weights to the forms that the configuration and the checkpoint ask for. FP8
    weights stay as stored where the device multiplies them."""
    assert isinstance(loaded.model, Decoder), "unsupported() says so"
    is_stored = stores_float8(config)
    multiplies = has_float8_products(loaded.device)
    forms = Forms(
        float8=config.weights == "float8" or (is_stored and multiplies),
        batch_invariant=config.batch_invariant,
    )
    scales = stored_scales(config, projections(loaded.model)) if is_stored else None
    adapt(loaded.model, forms, scales)


def make_runner(
    config: EngineConfig,
    loaded: LoadedModel,
    recorder: GraphRecorder,
    sizes: Sequence[int] | None = None,
) -> CudaRunner:
    """A runner over a model whose weights have been adapted. ``recorder`` records decode steps for
    batches of ``sizes`` (None: of all sizes up to ``max_sequences``).

    Raises:
        ConfigError: cache or decode memory cannot be allocated.
    """
    model = loaded.model
    assert isinstance(model, Decoder), "unsupported() says so"
    pool = _make_pool(config, loaded)
    triton = TritonAttention(
        loaded.device,
        pool.slot_positions_S,
        loaded.config.num_heads // loaded.config.num_kv_heads,
        loaded.config.num_kv_heads,
        config.batch_invariant,
    )
    attention = CudaAttention.choose(triton, loaded.config, loaded.dtype)
    logger.info("attention by %s, decode steps by recorded %s kernels", attention.name, triton.name)
    embeds = EmbedSlots(config.num_embeds, loaded.config.hidden_size, loaded.device, loaded.dtype)
    loop = _make_loop(config, loaded, model, pool, triton, recorder, sizes)
    return CudaRunner(model, pool, attention, embeds, loaded.device, loop)


def _make_loop(
    config: EngineConfig,
    loaded: LoadedModel,
    model: Decoder,
    pool: CudaKVPool,
    triton: TritonAttention,
    recorder: GraphRecorder,
    sizes: Sequence[int] | None,
) -> DecodeLoop:
    largest = min(config.max_sequences, config.max_batch_tokens)
    state = DecodeState(largest, _MAX_STEPS, _MAX_STOPS, pool.idle_slot, loaded.device)
    layers = [layer.attention.attributes for layer in model.layers]
    shape = AttentionShape(
        num_heads=loaded.config.num_heads,
        num_kv_heads=loaded.config.num_kv_heads,
        head_dim=loaded.config.head_dim,
        dtype=loaded.dtype,
        windows=tuple(dict.fromkeys(attributes.window for attributes in layers)),
    )
    pages_of_a_row = -(-loaded.max_model_len // config.page_size)
    static = StaticAttention(
        triton, shape, state, min(largest * pages_of_a_row, _MAX_ENTRIES), config.page_size
    )
    return DecodeLoop(
        model,
        pool.layers,
        loaded.config.vocab_size,
        state,
        static,
        recorder,
        sizes or bucket_sizes(largest),
    )


def _make_pool(config: EngineConfig, loaded: LoadedModel) -> CudaKVPool:
    shape = BlockShape(
        num_layers=loaded.config.num_layers,
        num_kv_heads=loaded.config.num_kv_heads,
        head_dim=loaded.config.head_dim,
        page_size=config.page_size,
        dtype=loaded.dtype,
    )
    if config.kv_cache_bytes is None:
        config = replace(config, kv_cache_bytes=cache_bytes(loaded.device))
    turn = KeyTurn(loaded.config.ropes, loaded.config.rope_of_layer, loaded.config.head_dim)
    return CudaKVPool.allocate(shape, config, loaded.device, turn)


def cache_bytes(device: torch.device) -> int:
    """The default cache size: the memory that the weights leave free, without the reserve."""
    if device.type != "cuda":
        return DEFAULT_CACHE_BYTES
    torch.cuda.empty_cache()  # memory cached by the allocator while loading is free too
    num_free, num_all = torch.cuda.mem_get_info(device)
    return max(DEFAULT_CACHE_BYTES, num_free - int(_RESERVED * num_all))


def _why_no_device(config: EngineConfig) -> str:
    if config.device not in ("auto", "cuda") and not config.device.startswith("cuda:"):
        return f"device is {config.device!r}: choose device cuda"
    if torch.version.cuda is None:
        return (
            "this PyTorch was built without CUDA: install a CUDA build (see pytorch.org) on a "
            "machine with an NVIDIA device"
        )
    return "PyTorch finds no CUDA device: check the driver (nvidia-smi), or choose backend cpu"
