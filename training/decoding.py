"""Decodes greedily in batches with an exported directory; written without the trainer.

Reads ``config.json``, ``model.safetensors`` and ``tokenizer.json`` and computes in fp32 with a
dense key/value cache, so that a mistake of the trainer or of the export cannot hide.  A test
compares it with transformers.

Shapes: B rows, T new tokens, S tokens seen, H heads, K key heads, E head size.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor

from training.corpus.document import BOS

TOKENS_PER_BATCH = 24_000


def _rotate(x_BTHE: Tensor, positions_BT: Tensor, theta: float) -> Tensor:
    size = x_BTHE.shape[-1]
    frequencies = theta ** -(torch.arange(0, size, 2, dtype=torch.float32) / size)
    angles = (positions_BT[..., None] * frequencies)[:, :, None]
    cos, sin = angles.cos().repeat(1, 1, 1, 2), angles.sin().repeat(1, 1, 1, 2)
    first, second = x_BTHE.chunk(2, -1)
    return x_BTHE * cos + torch.cat([-second, first], -1) * sin


@dataclass(slots=True)
class _Cache:
    """Keys and values of the rows that still run, one pair of tensors a layer."""

    keys: list[Tensor] = field(default_factory=list)
    values: list[Tensor] = field(default_factory=list)

    def append(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        if layer == len(self.keys):
            self.keys.append(key)
            self.values.append(value)
        else:
            self.keys[layer] = torch.cat([self.keys[layer], key], 1)
            self.values[layer] = torch.cat([self.values[layer], value], 1)
        return self.keys[layer], self.values[layer]

    def keep(self, rows: Tensor) -> None:
        self.keys = [key[rows] for key in self.keys]
        self.values = [value[rows] for value in self.values]


class PlainLlama:
    """The forward pass of a Llama directory, one method a concept."""

    def __init__(self, directory: Path) -> None:
        self.config = json.loads((directory / "config.json").read_text())
        weights = load_file(directory / "model.safetensors")
        self.weights = {name: weight.float() for name, weight in weights.items()}

    def forward(
        self, tokens_BT: Tensor, positions_BT: Tensor, mask: Tensor, cache: _Cache
    ) -> Tensor:
        """Return logits of the last column; ``mask`` is ``[B, 1, T, S]``, true where visible."""
        x = self.weights["model.embed_tokens.weight"][tokens_BT]
        for layer in range(self.config["num_hidden_layers"]):
            x = x + self._attention(layer, x, positions_BT, mask, cache)
            x = x + self._feed_forward(layer, x)
        x = self._norm(x[:, -1], "model.norm")
        return F.linear(x, self.weights["model.embed_tokens.weight"])

    def _norm(self, x: Tensor, name: str) -> Tensor:
        scale = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.config["rms_norm_eps"])
        return x * scale * self.weights[f"{name}.weight"]

    def _linear(self, x: Tensor, layer: int, name: str) -> Tensor:
        return F.linear(x, self.weights[f"model.layers.{layer}.{name}.weight"])

    def _attention(
        self, layer: int, x: Tensor, positions_BT: Tensor, mask: Tensor, cache: _Cache
    ) -> Tensor:
        h = self._norm(x, f"model.layers.{layer}.input_layernorm")
        heads, theta = (*x.shape[:2], -1, self.config["head_dim"]), self.config["rope_theta"]
        q, k, v = (self._linear(h, layer, f"self_attn.{part}_proj").view(heads) for part in "qkv")
        k, v = cache.append(layer, _rotate(k, positions_BT, theta), v)
        q = _rotate(q, positions_BT, theta)
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)
        return self._linear(y.transpose(1, 2).flatten(2), layer, "self_attn.o_proj")

    def _feed_forward(self, layer: int, x: Tensor) -> Tensor:
        h = self._norm(x, f"model.layers.{layer}.post_attention_layernorm")
        gate = F.silu(self._linear(h, layer, "mlp.gate_proj"))
        return self._linear(gate * self._linear(h, layer, "mlp.up_proj"), layer, "mlp.down_proj")


class Decoder:
    """A loaded directory that completes many prompts at once."""

    def __init__(self, directory: Path) -> None:
        self.model = PlainLlama(directory)
        self.tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
        self.end: int = self.model.config["eos_token_id"]

    def complete(self, prompts: Sequence[str], max_tokens: int, stop: str = "") -> list[str]:
        """Return greedy continuations, without the end mark; a final ``stop`` text is kept."""
        if not all(prompt.startswith(BOS) for prompt in prompts):
            raise ValueError(f"a prompt does not begin with {BOS}: the template writes it")
        encoded = [e.ids for e in self.tokenizer.encode_batch(list(prompts))]
        suffix = self.tokenizer.encode(stop).ids
        order = sorted(range(len(encoded)), key=lambda index: len(encoded[index]))
        replies = [""] * len(encoded)
        while order:
            size = max(1, TOKENS_PER_BATCH // (len(encoded[order[-1]]) + max_tokens))
            chosen, order = order[-size:], order[:-size]
            outputs = self._decode([encoded[i] for i in chosen], max_tokens, suffix)
            for index, ids in zip(chosen, outputs, strict=True):
                replies[index] = self.tokenizer.decode(ids)
        return replies

    @torch.inference_mode()
    def _decode(
        self, prompts: list[list[int]], max_tokens: int, suffix: list[int]
    ) -> list[list[int]]:
        """Left-padded rows; a row leaves the batch when it ends."""
        width = max(map(len, prompts))
        pads = torch.tensor([width - len(ids) for ids in prompts])
        tokens = torch.tensor([[0] * (width - len(ids)) + ids for ids in prompts])
        running, outputs = list(range(len(prompts))), [list[int]() for _ in prompts]
        cache, columns = _Cache(), torch.arange(width)
        for _ in range(max_tokens):
            seen = torch.arange(int(columns[-1]) + 1)
            visible = (seen <= columns[:, None]) & (seen >= pads[:, None, None])
            visible |= seen == columns[:, None]  # a padding column sees itself, or softmax fails
            positions = (columns - pads[:, None]).clamp(min=0)
            logits_BV = self.model.forward(tokens, positions, visible[:, None], cache)
            tokens = logits_BV.argmax(-1, keepdim=True)
            kept = []
            for row, (index, token) in enumerate(zip(running, tokens[:, 0].tolist(), strict=True)):
                if token == self.end:
                    continue
                outputs[index].append(token)
                if not suffix or outputs[index][-len(suffix) :] != suffix:
                    kept.append(row)
            if not kept:
                break
            if len(kept) < len(running):
                rows = torch.tensor(kept)
                running, tokens, pads = [running[r] for r in kept], tokens[rows], pads[rows]
                cache.keep(rows)
            columns = columns[-1:] + 1
        return outputs
