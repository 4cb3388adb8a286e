"""Reads the weights of a checkpoint as llama.cpp names and orders them.

Reads safetensors files by itself and imports only numpy, because it runs in llama.cpp's own
environment, which has neither torch nor Quire. Knows Llama's layers alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

Floats = np.ndarray[Any, np.dtype[np.float32]]

_WHOLE = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
_LAYER = {
    "input_layernorm.weight": "attn_norm.weight",
    "self_attn.q_proj.weight": "attn_q.weight",
    "self_attn.k_proj.weight": "attn_k.weight",
    "self_attn.v_proj.weight": "attn_v.weight",
    "self_attn.o_proj.weight": "attn_output.weight",
    "post_attention_layernorm.weight": "ffn_norm.weight",
    "mlp.gate_proj.weight": "ffn_gate.weight",
    "mlp.up_proj.weight": "ffn_up.weight",
    "mlp.down_proj.weight": "ffn_down.weight",
}
_HEADS = {"attn_q.weight": "num_attention_heads", "attn_k.weight": "num_key_value_heads"}
"""The tensors whose rows llama.cpp orders otherwise, and their number of heads."""


def read_config(directory: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    return found


def llama_tensors(directory: Path) -> Iterator[tuple[str, Floats]]:
    """Yield every tensor with llama.cpp's name. Raises ``KeyError`` for one that Llama does not
    have."""
    config = read_config(directory)
    for path in sorted(directory.glob("*.safetensors")):
        for name, tensor in read_safetensors(path):
            new_name = llama_name(name)
            heads = _HEADS.get(new_name.split(".", 2)[-1])
            yield new_name, tensor if heads is None else interleaved(tensor, config[heads])


def llama_name(name: str) -> str:
    if name in _WHOLE:
        return _WHOLE[name]
    _, _, number, part = name.split(".", 3)
    return f"blk.{number}.{_LAYER[part]}"


def interleaved(rows: Floats, num_heads: int) -> Floats:
    """Return the rows in llama.cpp's order: its rotary embeddings turn neighbouring rows of a head,
    those of the checkpoint rows that are half a head apart."""
    halves = rows.reshape(num_heads, 2, -1, *rows.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(rows.shape)


def read_safetensors(path: Path) -> Iterator[tuple[str, Floats]]:
    """Yield the file's tensors as float32, in the order of their names.

    Raises:
        ValueError: a tensor has another type than bf16 or float32.
    """
    mapped = np.memmap(path, np.uint8, "r")
    start = 8 + int(mapped[:8].view("<u8")[0])
    header = json.loads(mapped[8:start].tobytes())
    header.pop("__metadata__", None)
    for name, entry in sorted(header.items()):
        begin, end = entry["data_offsets"]
        raw = mapped[start + begin : start + end]
        yield name, _as_float32(raw, entry["dtype"], name).reshape(entry["shape"])


def _as_float32(raw: np.ndarray[Any, np.dtype[np.uint8]], kind: str, name: str) -> Floats:
    if kind == "F32":
        return raw.copy().view("<f4")
    if kind == "BF16":  # the upper half of a float32
        return (raw.copy().view("<u2").astype(np.uint32) << 16).view(np.float32)
    raise ValueError(f"{name} is {kind}: only BF16 and F32 are read")
