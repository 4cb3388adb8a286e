"""Softmax attention over gathered keys and values, in PyTorch.

Shapes: R rows, Q queries per row, C keys per row, N heads, K KV heads, G heads per KV head, D head
size.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from quire.engine.attention.backend import AttentionAttributes


def attend(
    q_RNQD: Tensor,
    keys_RKCD: Tensor,
    values_RKCD: Tensor,
    bias_R1QC: Tensor,
    attributes: AttentionAttributes,
) -> Tensor:
    """Attention output ``[R, N, Q, D]``. Windows are in the bias already."""
    if attributes.softcap is not None or attributes.sinks_N is not None:
        return _explicit(q_RNQD, keys_RKCD, values_RKCD, bias_R1QC, attributes)
    num_rows, _, num_queries, head_dim = q_RNQD.shape
    if num_queries > 1:
        return F.scaled_dot_product_attention(
            q_RNQD,
            keys_RKCD,
            values_RKCD,
            attn_mask=bias_R1QC,
            scale=attributes.scale,
            enable_gqa=True,
        )
    # the heads that share a KV head are treated as queries, so that K and V are read once
    out_RKGD = F.scaled_dot_product_attention(
        q_RNQD.reshape(num_rows, keys_RKCD.shape[1], -1, head_dim),
        keys_RKCD,
        values_RKCD,
        attn_mask=bias_R1QC,
        scale=attributes.scale,
    )
    return out_RKGD.reshape(q_RNQD.shape)


def _explicit(
    q_RNQD: Tensor,
    keys_RKCD: Tensor,
    values_RKCD: Tensor,
    bias_R1QC: Tensor,
    attributes: AttentionAttributes,
) -> Tensor:
    """The variants that PyTorch's operation lacks: soft-caps and sinks. Softmax in float32."""
    num_rows, num_heads, num_queries, head_dim = q_RNQD.shape
    shape = (num_rows, keys_RKCD.shape[1], -1)
    products = q_RNQD.reshape(*shape, head_dim) @ keys_RKCD.transpose(-1, -2)
    scores_RNQC = products.float().view(num_rows, num_heads, num_queries, -1) * attributes.scale
    if attributes.softcap is not None:
        scores_RNQC = (scores_RNQC / attributes.softcap).tanh() * attributes.softcap
    scores_RNQC = scores_RNQC + bias_R1QC
    if attributes.sinks_N is None:
        probs_RNQC = scores_RNQC.softmax(dim=-1)
    else:
        sinks = attributes.sinks_N.float()[:, None, None].expand(num_rows, -1, num_queries, 1)
        probs_RNQC = torch.cat((scores_RNQC, sinks), dim=-1).softmax(dim=-1)[..., :-1]
    probs = probs_RNQC.to(values_RKCD.dtype).reshape(shape[0], shape[1], -1, keys_RKCD.shape[2])
    return (probs @ values_RKCD).view(q_RNQD.shape)
