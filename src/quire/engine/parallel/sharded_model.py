"""One rank's ``CausalLM``: a decoder of local shape with collectives where ranks must combine
results."""

from __future__ import annotations

import torch
from torch import Tensor

from quire.core.errors import ConfigError
from quire.engine.layers.attention import ModelStep
from quire.engine.layers.norm import QKNorm
from quire.engine.layers.rotary import Rotation
from quire.engine.models.decoder import CausalLM, Decoder
from quire.engine.models.decoder_config import DecoderConfig
from quire.engine.parallel.collectives import Collectives


class ShardedDecoder:
    """Implements ``CausalLM`` on one rank. ``config`` is that of the undivided model.

    Hidden states are the same on every rank; logits are complete on rank 0 and partial elsewhere.
    """

    def __init__(self, decoder: CausalLM, config: DecoderConfig, ranks: Collectives) -> None:
        if not isinstance(decoder, Decoder):
            raise ConfigError(
                f"tensor_parallel is {ranks.shard.size}, but a {type(decoder).__name__} cannot be "
                "split: choose 1"
            )
        self._decoder = decoder
        self._vocab_size = config.vocab_size
        self._ranks = ranks
        self._first, self._end = ranks.shard.vocabulary(config.vocab_size)
        for layer in decoder.layers:
            layer.combine = ranks.sum
            norm = layer.attention.qk_norm
            if norm is not None and norm.kind == "whole":
                layer.attention.qk_norm = WholeQKNorm(norm, config, ranks)

    def embed(self, tokens_T: Tensor) -> Tensor:
        mine_T = (tokens_T >= self._first) & (tokens_T < self._end)
        x_TH = self._decoder.embed(torch.where(mine_T, tokens_T - self._first, 0))
        return self._ranks.sum(x_TH.masked_fill_(~mine_T[:, None], 0))

    def rotations(self, positions_T: Tensor) -> list[Rotation]:
        return self._decoder.rotations(positions_T)

    def forward(self, x_TH: Tensor, step: ModelStep) -> Tensor:
        return self._decoder.forward(x_TH, step)

    def logits(self, hidden_NH: Tensor) -> Tensor:
        part_NV = self._decoder.logits(hidden_NH)
        parts = self._ranks.gather(part_NV)
        return torch.cat(parts, dim=-1)[:, : self._vocab_size] if parts else part_NV


class WholeQKNorm(QKNorm):
    """``QKNorm`` of kind ``whole`` where the heads of a token are divided among ranks: the mean of
    squares is taken over all of them. A KV head that several ranks hold counts once."""

    def __init__(self, norm: QKNorm, config: DecoderConfig, ranks: Collectives) -> None:
        self.kind, self.eps = norm.kind, norm.eps
        self.num_heads = norm.num_heads
        self.query_weight, self.key_weight = norm.query_weight, norm.key_weight
        attention, size = config.attention, ranks.shard.size
        self._num_queries = attention.num_heads * attention.head_dim
        self._num_keys = attention.num_kv_heads * attention.head_dim
        self._copies = max(1, size // attention.num_kv_heads)
        self._ranks = ranks

    def __call__(self, qk_THD: Tensor) -> Tensor:
        q_TX = qk_THD[:, : self.num_heads].flatten(1).float()
        k_TX = qk_THD[:, self.num_heads :].flatten(1).float()
        squares_T2 = torch.stack((q_TX.square().sum(-1), k_TX.square().sum(-1)), dim=1)
        squares_T2 = self._ranks.sum(squares_T2)
        q_TX = q_TX * self._scale(squares_T2[:, :1] / self._num_queries) * self.query_weight
        k_TX = k_TX * self._scale(squares_T2[:, 1:] / self._copies / self._num_keys)
        whole_TX = torch.cat((q_TX, k_TX * self.key_weight), dim=1)
        return whole_TX.to(qk_THD.dtype).view(qk_THD.shape)

    def _scale(self, mean_square_T1: Tensor) -> Tensor:
        return torch.rsqrt(mean_square_T1 + self.eps)
