"""A decoder as an encoder: causal hidden states of whole sequences.

Runs the engine's own definition of the family over ragged sequences, without pages: K and V are
kept for one layer at a time.

Suffixes of tensors: T tokens of all sequences, B sequences, L tokens of the longest, H hidden size,
N heads, K KV heads, D head size.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional

from quire.core.errors import UnsupportedModel
from quire.engine.attention.backend import AttentionAttributes
from quire.engine.kv_cache.torch_pool import LayerCache
from quire.engine.layers.attention import GroupStep, ModelStep
from quire.engine.layers.parameters import Parameters
from quire.engine.models.decoder import Decoder
from quire.engine.models.decoder_config import DecoderConfig


class WholeSequences:
    """``AttentionPlan`` of sequences that are adjacent in the cache's slots."""

    def __init__(self, lengths: list[int]) -> None:
        self._lengths = lengths

    def attend(self, q_TND: Tensor, cache: LayerCache, attributes: AttentionAttributes) -> Tensor:
        parts = [
            _attend(q_LND, k_LKD, v_LKD, attributes)
            for q_LND, k_LKD, v_LKD in zip(
                q_TND.split_with_sizes(self._lengths),
                cache.keys_SKD.split_with_sizes(self._lengths),
                cache.values_SKD.split_with_sizes(self._lengths),
                strict=True,
            )
        ]
        return torch.cat(parts).flatten(1)


def _attend(q_LND: Tensor, k_LKD: Tensor, v_LKD: Tensor, attributes: AttentionAttributes) -> Tensor:
    length, window = len(q_LND), attributes.window
    mask_LL = None
    if window is not None and window < length:
        mask_LL = torch.ones(length, length, dtype=torch.bool, device=q_LND.device)
        mask_LL = mask_LL.tril().triu(1 - window)
    seen_NLD = functional.scaled_dot_product_attention(
        q_LND.transpose(0, 1)[None],
        k_LKD.transpose(0, 1)[None],
        v_LKD.transpose(0, 1)[None],
        attn_mask=mask_LL,
        is_causal=mask_LL is None,
        scale=attributes.scale,
        enable_gqa=True,
    )[0]
    return seen_NLD.transpose(0, 1)


class DecoderBody:
    """``prefix``: of the tensors' names in the checkpoint, as ``model`` or empty. ``has_output``:
    whether the checkpoint includes the output projection.

    Raises:
        UnsupportedModel: attention with soft-caps or sinks.
    """

    def __init__(
        self, parameters: Parameters, prefix: str, config: DecoderConfig, *, has_output: bool
    ) -> None:
        if config.attention.softcap is not None or config.attention.sinks:
            raise UnsupportedModel("a decoder with soft-caps or sinks is not served as an encoder")
        self._config = config
        tied = config.tie_embeddings or not has_output
        self.decoder = Decoder(replace(config, prefix=prefix, tie_embeddings=tied), parameters)

    def __call__(self, tokens_BL: Tensor, types_BL: Tensor, visible_BL: Tensor) -> Tensor:
        """Hidden states [B, L, H] after the last norm; zeros where ``visible_BL`` is false."""
        del types_BL  # decoders have no token types
        lengths_B = visible_BL.sum(1)
        places_BL = torch.arange(tokens_BL.shape[1], device=tokens_BL.device).expand_as(tokens_BL)
        hidden_TH = self._run(tokens_BL[visible_BL], places_BL[visible_BL], lengths_B.tolist())
        hidden_BLH = hidden_TH.new_zeros(*tokens_BL.shape, hidden_TH.shape[1])
        hidden_BLH[visible_BL] = hidden_TH
        return hidden_BLH

    def _run(self, tokens_T: Tensor, positions_T: Tensor, lengths: list[int]) -> Tensor:
        x_TH = self.decoder.embed(tokens_T)
        config = self._config
        shape = (len(tokens_T), config.num_kv_heads, config.head_dim)
        cache = LayerCache(x_TH.new_empty(shape), x_TH.new_empty(shape))
        slots_T = torch.arange(len(tokens_T), device=tokens_T.device)
        step = ModelStep(
            rotations=self.decoder.rotations(positions_T),
            caches=[cache] * config.num_layers,  # layers use it one after another
            groups=[GroupStep(slots_T, WholeSequences(lengths))],
        )
        return self.decoder.forward(x_TH, step)
