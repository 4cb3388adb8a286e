"""Runs llama.cpp as built for this machine on a GGUF file, in llama.cpp's own environment.

Drives the C interface directly, as llama.cpp's server does: all sequences are decoded in one batch,
prompts are computed in batches of its default size, each sequence has a part of the cache of its
own (the faster form for prompts that share nothing), and the token with the largest logit is taken.
"""

from __future__ import annotations

import ctypes
import os
from typing import Any

import llama_cpp as llama
import numpy as np
from worker import Arrived, Prompts, serve


class Rows:
    """The rows of one batch in numpy arrays, to which llama.cpp gets pointers."""

    def __init__(self, capacity: int) -> None:
        self.tokens = np.zeros(capacity, np.int32)
        self.positions = np.zeros(capacity, np.int32)
        self.sequences = np.zeros(capacity, np.int32)
        self.wanted = np.zeros(capacity, np.int8)
        self._one_each = np.ones(capacity, np.int32)
        self._places = self.sequences.ctypes.data + 4 * np.arange(capacity, dtype=np.uint64)

    def batch(self, count: int) -> llama.llama_batch:
        fields = dict(llama.llama_batch._fields_)
        arrays = {
            "token": self.tokens,
            "pos": self.positions,
            "n_seq_id": self._one_each,
            "seq_id": self._places,
            "logits": self.wanted,
        }
        pointers = {
            name: ctypes.cast(array.ctypes.data, fields[name]) for name, array in arrays.items()
        }
        return llama.llama_batch(n_tokens=count, **pointers)


class LlamaCppModel:
    version = llama.__version__

    def __init__(self, order: dict[str, Any]) -> None:
        llama.llama_backend_init()
        path = order["model"]
        self._model = llama.llama_model_load_from_file(
            path.encode(), llama.llama_model_default_params()
        )
        if not self._model:
            raise RuntimeError(f"llama.cpp cannot load {path}")
        wanted = llama.llama_context_default_params()
        wanted.n_seq_max = order["max_sequences"]
        wanted.n_ctx = order["max_sequences"] * order["max_model_len"]
        wanted.kv_unified = False
        wanted.n_threads = order["num_threads"] or len(os.sched_getaffinity(0))
        wanted.n_threads_batch = wanted.n_threads
        self._context = llama.llama_init_from_model(self._model, wanted)
        if not self._context:
            raise RuntimeError(f"llama.cpp has no memory for a context of {wanted.n_ctx} tokens")
        self._memory = llama.llama_get_memory(self._context)
        self._num_rows = llama.llama_n_batch(self._context)
        self._rows = Rows(self._num_rows)
        vocab = llama.llama_model_get_vocab(self._model)
        self._vocab_size = llama.llama_vocab_n_tokens(vocab)

    def generate(self, prompts: Prompts, num_tokens: int, arrived: Arrived) -> None:
        llama.llama_memory_clear(self._memory, False)
        lengths = np.array([len(prompt) for prompt in prompts])
        ids = np.arange(len(prompts), dtype=np.int32)
        tokens = np.concatenate([np.array(prompt, np.int32) for prompt in prompts])
        positions = np.concatenate([np.arange(length) for length in lengths])
        sequences = np.repeat(ids, lengths)
        wanted = positions == np.repeat(lengths, lengths) - 1
        last = np.zeros(len(prompts), np.int32)
        for start in range(0, len(tokens), self._num_rows):
            part = slice(start, start + self._num_rows)
            ended = sequences[part][wanted[part]]
            last[ended] = self._run(tokens[part], positions[part], sequences[part], wanted[part])
            for index in ended.tolist():
                arrived(index, 1)
        for step in range(num_tokens - 1):
            last = self._run(last, lengths + step, ids, np.ones(len(ids)))
            for index in ids.tolist():
                arrived(index, 1)

    def _run(self, tokens: Any, positions: Any, sequences: Any, wanted: Any) -> Any:
        """Compute one batch; the best token of each row that is wanted, in order."""
        rows, count = self._rows, len(tokens)
        rows.tokens[:count] = tokens
        rows.positions[:count] = positions
        rows.sequences[:count] = sequences
        rows.wanted[:count] = wanted
        status = llama.llama_decode(self._context, rows.batch(count))
        if status != 0:
            raise RuntimeError(f"llama_decode of {count} tokens returned {status}")
        num_wanted = int(np.count_nonzero(wanted))
        if not num_wanted:
            return np.zeros(0, np.int32)
        logits = llama.llama_get_logits(self._context)
        return np.ctypeslib.as_array(logits, (num_wanted, self._vocab_size)).argmax(axis=1)


if __name__ == "__main__":
    serve(LlamaCppModel)
