"""Runs transformers on the same shapes, with its defaults: eager modules, PyTorch's attention."""

from __future__ import annotations

import gc
from typing import Any

import torch
from measure import median_s

PEER_STEPS = 8


class Peer:
    """A model of ``raw`` with random weights, made on the device.

    Raises:
        ImportError: transformers is not installed.
    """

    def __init__(self, raw: dict[str, Any], device: torch.device) -> None:
        from transformers import AutoConfig, AutoModelForCausalLM

        values = {key: value for key, value in raw.items() if key != "model_type"}
        config = AutoConfig.for_model(raw["model_type"], **values)
        dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
        with device:
            make: Any = AutoModelForCausalLM.from_config
            self.model = make(config, dtype=dtype, attn_implementation="sdpa").eval()
        self.device = device
        self.vocab_size = int(raw["vocab_size"])

    def decode_step_s(self, batch: int, context: int) -> float:
        """Return the seconds of one forward pass of one token per row after ``context`` tokens."""
        past = self._forward(self._tokens(batch, context), None).past_key_values
        one = self._tokens(batch, 1)

        def steps() -> None:
            for _ in range(PEER_STEPS):
                logits = self._forward(one, past).logits
                logits[:, -1].argmax(dim=-1)
            past.crop(-PEER_STEPS)

        return median_s(steps, self.device, rounds=3) / PEER_STEPS

    def prefill_s(self, length: int) -> float:
        tokens = self._tokens(1, length)
        return median_s(lambda: self._forward(tokens, None), self.device, rounds=3)

    def close(self) -> None:
        """Free its memory."""
        del self.model
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def _forward(self, tokens: torch.Tensor, past: Any) -> Any:
        return self.model(input_ids=tokens, past_key_values=past, use_cache=True, logits_to_keep=1)

    def _tokens(self, batch: int, length: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(0)
        tokens = torch.randint(self.vocab_size, (batch, length), generator=generator)
        return tokens.to(self.device)
