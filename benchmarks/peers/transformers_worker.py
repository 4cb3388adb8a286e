"""Runs transformers' ``generate`` with its default cache, on torch's default number of threads."""

from __future__ import annotations

from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM, LogitsProcessor, LogitsProcessorList
from worker import Arrived, Prompts, serve


class _Told(LogitsProcessor):
    """Called once per step with the logits of the next token, when the token is practically
    known."""

    def __init__(self, arrived: Arrived, num_prompts: int) -> None:
        self._arrived = arrived
        self._num_prompts = num_prompts

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        for index in range(self._num_prompts):
            self._arrived(index, 1)
        return scores


class TransformersModel:
    version = transformers.__version__

    def __init__(self, order: dict[str, Any]) -> None:
        transformers.utils.logging.set_verbosity_error()
        loaded = AutoModelForCausalLM.from_pretrained(order["model"], dtype=torch.bfloat16)
        self._model = loaded.eval()

    def generate(self, prompts: Prompts, num_tokens: int, arrived: Arrived) -> None:
        tokens = torch.tensor(prompts)
        with torch.inference_mode():
            self._model.generate(
                tokens,
                attention_mask=torch.ones_like(tokens),
                max_new_tokens=num_tokens,
                min_new_tokens=num_tokens,
                do_sample=False,
                pad_token_id=0,
                logits_processor=LogitsProcessorList([_Told(arrived, len(prompts))]),
            )


if __name__ == "__main__":
    serve(TransformersModel)
