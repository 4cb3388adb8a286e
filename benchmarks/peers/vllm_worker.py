"""Runs vLLM on CPU, its engine stepped in this process, in vLLM's own environment."""

from __future__ import annotations

import itertools
import os
from typing import Any

os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")

import vllm
from vllm import LLM, SamplingParams, TokensPrompt
from worker import Arrived, Prompts, serve


class VllmModel:
    version = vllm.__version__

    def __init__(self, order: dict[str, Any]) -> None:
        self._engine = LLM(
            model=order["model"],
            dtype=order["dtype"],
            max_model_len=order["max_model_len"],
            max_num_seqs=order["max_sequences"],
            enable_prefix_caching=False,
            disable_log_stats=True,
        ).llm_engine
        self._numbers = itertools.count()

    def generate(self, prompts: Prompts, num_tokens: int, arrived: Arrived) -> None:
        sampling = SamplingParams(temperature=0, max_tokens=num_tokens, ignore_eos=True)
        index_of, known = {}, [0] * len(prompts)
        for index, prompt in enumerate(prompts):
            name = str(next(self._numbers))
            index_of[name] = index
            self._engine.add_request(name, TokensPrompt(prompt_token_ids=prompt), sampling)
        while self._engine.has_unfinished_requests():
            for output in self._engine.step():
                index = index_of[output.request_id.split("-")[0]]
                count = len(output.outputs[0].token_ids) - known[index]
                if count:
                    known[index] += count
                    arrived(index, count)


if __name__ == "__main__":
    serve(VllmModel)
