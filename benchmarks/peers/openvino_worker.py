"""Runs openvino-genai's continuous-batching pipeline on an exported model, in its own
environment."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import openvino
import openvino_genai as genai
from worker import Arrived, Prompts, serve


class OpenVinoModel:
    version = genai.__version__

    def __init__(self, order: dict[str, Any]) -> None:
        scheduler = genai.SchedulerConfig()
        scheduler.cache_size = 2  # GiB
        scheduler.max_num_seqs = order["max_sequences"]
        scheduler.enable_prefix_caching = False
        self._pipeline = genai.ContinuousBatchingPipeline(order["model"], scheduler, "CPU")
        self._numbers = itertools.count()

    def generate(self, prompts: Prompts, num_tokens: int, arrived: Arrived) -> None:
        config = genai.GenerationConfig(
            max_new_tokens=num_tokens, ignore_eos=True, do_sample=False, eos_token_id=-1
        )
        handles = [
            self._pipeline.add_request(
                next(self._numbers), openvino.Tensor(np.array([prompt], np.int64)), config
            )
            for prompt in prompts
        ]
        while self._pipeline.has_non_finished_requests():
            self._pipeline.step()
            for index, handle in enumerate(handles):
                if handle.can_read():
                    (output,) = handle.read().values()
                    arrived(index, len(output.generated_ids))


if __name__ == "__main__":
    serve(OpenVinoModel)
