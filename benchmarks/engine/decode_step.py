"""Time of one decode step: Quire's engine next to transformers' ``generate``, in the same run.

    python benchmarks/engine/decode_step.py [--models tiny small] [--batches 1 8 32] [--rounds 5]

Random Llama checkpoints (tiny: 5M parameters, small: 125M), fixed seeds, greedy, prompts of 128
tokens, 64 decode steps. Rounds of the two are interleaved; figures are medians. Prints a table on
stderr and one JSON line on stdout; quote its ratios, not its seconds.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM
from transformers.utils import logging

from quire.core.batch import (
    AdvanceRows,
    Batch,
    CloseSequences,
    DropTables,
    ForwardRows,
    OpenSequence,
    WriteTable,
)
from quire.core.config import EngineConfig
from quire.core.decoding import SamplerSpec, StopSpec
from quire.core.ids import ModelId, SequenceId, TableId
from quire.engine.engine import Engine

PROMPT, STEPS, STEPS_PER_MESSAGE, PAGE_SIZE = 128, 64, 8, 16
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
SHAPES: dict[str, dict[str, int]] = {
    "tiny": {
        "hidden_size": 256,
        "num_hidden_layers": 6,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "intermediate_size": 688,
        "vocab_size": 4096,
    },
    "small": {
        "hidden_size": 768,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "num_key_value_heads": 4,
        "intermediate_size": 2048,
        "vocab_size": 32000,
    },
}


def make_checkpoint(name: str, path: Path) -> None:
    torch.manual_seed(0)
    config = LlamaConfig(
        **SHAPES[name],
        max_position_embeddings=4096,
        initializer_range=0.05,
        tie_word_embeddings=False,
    )
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(path)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({c: i for i, c in enumerate(alphabet)}, []))
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(path / "tokenizer.json"))


def i32(values: Any) -> np.ndarray[Any, np.dtype[np.int32]]:
    return np.array(values, np.int32)


class QuireDecode:
    """The engine, driven as control would: prompts one by one, then messages of several steps."""

    def __init__(self, path: Path, dtype: str, num_threads: int | None, clock: str) -> None:
        self._clock = clock
        self.engine = Engine(
            EngineConfig(
                source=str(path),
                name=ModelId("bench"),
                dtype=dtype,  # type: ignore[arg-type]
                num_threads=num_threads,
            )
        )
        self._step = 0

    def send(self, **fields: Any) -> Any:
        result = self.engine.execute(Batch(step=self._step, **fields))
        assert not result.failures, result.failures
        self._step += 1
        return result

    def seconds_per_step(self, prompts: list[list[int]]) -> float:
        for sequence, prompt in enumerate(prompts):
            self._start(sequence, prompt)
        count = len(prompts)
        advance = AdvanceRows(
            sequences=i32(range(count)),
            epochs=i32([1] * count),
            max_steps=i32([STEPS_PER_MESSAGE] * count),
        )
        started = CLOCKS[self._clock]()
        for _ in range(STEPS // STEPS_PER_MESSAGE):
            self.send(num_steps=STEPS_PER_MESSAGE, advance=advance)
        elapsed = CLOCKS[self._clock]() - started
        ids = list(range(count))
        self.send(
            operations=[
                CloseSequences(sequences=[SequenceId(i) for i in ids]),
                DropTables(tables=[TableId(i) for i in ids]),
            ]
        )
        return elapsed / STEPS

    def _start(self, sequence: int, prompt: list[int]) -> None:
        length, num_pages = len(prompt), (PROMPT + STEPS + PAGE_SIZE) // PAGE_SIZE
        blocks = np.arange(num_pages, dtype=np.int32) + sequence * num_pages
        visible = np.zeros(num_pages, np.uint64)
        visible[: length // PAGE_SIZE] = (1 << PAGE_SIZE) - 1
        slots = blocks[:, None] * PAGE_SIZE + np.arange(PAGE_SIZE)
        self.send(
            operations=[
                WriteTable(table=TableId(sequence), start=0, blocks=blocks, visible=visible),
                OpenSequence(
                    sequence=SequenceId(sequence),
                    epoch=1,
                    table=TableId(sequence),
                    cursor=length,
                    limit=num_pages * PAGE_SIZE,
                    position=length,
                    sampler=SamplerSpec(),
                    stop=StopSpec(max_tokens=STEPS + 8),
                    history=i32(prompt),
                ),
            ],
            forward=ForwardRows(
                row_starts=i32([0, length]),
                tables=i32([sequence]),
                sequences=i32([sequence]),
                tokens=i32(prompt),
                embeds=i32([-1] * length),
                positions=i32([range(length)]),
                slots=slots.reshape(1, -1)[:, :length].astype(np.int32),
                outputs=i32([-1] * length),
            ),
        )


class TransformersDecode:
    """``generate`` with its default cache, on as many threads as the engine chose.

    The prompt's time is measured apart and taken off.
    """

    def __init__(self, path: Path, dtype: torch.dtype, clock: str) -> None:
        self._clock = clock
        self._model = AutoModelForCausalLM.from_pretrained(path, dtype=dtype).eval()

    def seconds_per_step(self, prompts: list[list[int]]) -> float:
        return (self._seconds(prompts, STEPS + 1) - self._seconds(prompts, 1)) / STEPS

    def _seconds(self, prompts: list[list[int]], count: int) -> float:
        started = CLOCKS[self._clock]()
        with torch.inference_mode():
            self._model.generate(
                torch.tensor(prompts),
                max_new_tokens=count,
                min_new_tokens=count,
                do_sample=False,
                pad_token_id=0,
            )
        return CLOCKS[self._clock]() - started


def measure(
    path: Path,
    name: str,
    dtype: str,
    batches: list[int],
    rounds: int,
    num_threads: int | None,
    clock: str,
) -> list[Any]:
    quire = QuireDecode(path, dtype, num_threads, clock)
    used = quire.engine.info.dtype
    baseline = TransformersDecode(path, getattr(torch, used), clock)
    random = np.random.default_rng(0)
    rows = []
    for batch in batches:
        prompts = random.integers(3, SHAPES[name]["vocab_size"], (batch, PROMPT)).tolist()
        ours, theirs = [], []
        title = f"{name} {used}, batch {batch}"
        for _ in track(range(rounds + 1), title, console=Console(stderr=True)):
            ours.append(quire.seconds_per_step(prompts))
            theirs.append(baseline.seconds_per_step(prompts))
        row = {
            "model": name,
            "dtype": used,
            "num_threads": quire.engine.info.extra["num_threads"],
            "batch": batch,
            "quire_ms": round(1e3 * statistics.median(ours[1:]), 3),
            "transformers_ms": round(1e3 * statistics.median(theirs[1:]), 3),
        }
        row["ratio"] = round(row["transformers_ms"] / row["quire_ms"], 2)
        print(row, file=sys.stderr)
        rows.append(row)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", default=["tiny", "small"], choices=SHAPES)
    parser.add_argument("--dtypes", nargs="+", default=["auto"])
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 8, 32])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--num-threads", type=int, help="default: the engine's choice")
    parser.add_argument(
        "--clock",
        choices=CLOCKS,
        default="wall",
        help="cpu: processor time, for machines shared with others (with --num-threads 1)",
    )
    arguments = parser.parse_args()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    rows = []
    with tempfile.TemporaryDirectory() as root:
        for name in arguments.models:
            make_checkpoint(name, Path(root) / name)
            for dtype in arguments.dtypes:
                path = Path(root) / name
                rows += measure(
                    path,
                    name,
                    dtype,
                    arguments.batches,
                    arguments.rounds,
                    arguments.num_threads,
                    arguments.clock,
                )
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    )
    report = {
        "benchmark": "engine/decode_step",
        "hardware": f"{platform.machine()}, {len(os.sched_getaffinity(0))} cores",
        "commit": commit.stdout.strip(),
        "torch": torch.__version__,
        "clock": arguments.clock,
        "results": rows,
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
