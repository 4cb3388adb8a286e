"""``python -m training.evaluate`` prints held-out scores of the exported model, as a table and
JSON."""

import argparse
import json
import math
import time
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from training.decoding import Decoder
from training.export import DEFAULT_TARGET
from training.scoring import TASKS, Task


@dataclass(frozen=True, slots=True)
class Score:
    """One row of the report."""

    task: str
    items: int
    correct: int
    exact_match: float
    lower_bound: float
    bar: float | None
    by_kind: dict[str, str]

    @property
    def met(self) -> bool:
        return self.bar is None or self.lower_bound >= self.bar


def wilson_lower_bound(correct: int, items: int, z: float = 1.96) -> float:
    """Return the lower end of the 95 % Wilson score interval of a share."""
    share = correct / items
    centre = share + z * z / (2 * items)
    spread = z * math.sqrt(share * (1 - share) / items + z * z / (4 * items * items))
    return (centre - spread) / (1 + z * z / items)


def score(decoder: Decoder, task: Task, items: int, seed: int) -> Score:
    """Decode and judge one task."""
    documents = task.documents(items, seed)
    right = task.judge(decoder, documents)
    asked = Counter(document.kind for document in documents)
    solved = Counter(d.kind for d, ok in zip(documents, right, strict=True) if ok)
    return Score(
        task=task.name,
        items=items,
        correct=sum(right),
        exact_match=sum(right) / items,
        lower_bound=wilson_lower_bound(sum(right), items),
        bar=task.bar,
        by_kind={kind: f"{solved[kind]}/{asked[kind]}" for kind in sorted(asked)},
    )


def _line(row: Score) -> str:
    bar = "" if row.bar is None else f"{row.bar:6.1%}  {'met' if row.met else 'MISSED'}"
    return f"{row.task:20} {row.items:6} {row.exact_match:8.1%} {row.lower_bound:8.1%}  {bar}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--items", type=int, default=500, help="held-out documents per task")
    parser.add_argument("--model", type=Path, default=DEFAULT_TARGET)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tasks", nargs="*", help="only these rows")
    parser.add_argument("--json", type=Path, help="also write the scores to this file")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    decoder, rows, started = Decoder(options.model), [], time.monotonic()
    print(f"{'task':20} {'n':>6} {'exact':>8} {'lower':>8}  {'bar':>6}")
    for task in TASKS:
        if not options.tasks or task.name in options.tasks:
            rows.append(score(decoder, task, options.items, options.seed))
            print(_line(rows[-1]), flush=True)
    print(f"{time.monotonic() - started:.0f} s; lower: 95 % Wilson bound, which the bar is held to")
    if options.json:
        options.json.write_text(json.dumps([asdict(row) for row in rows], indent=2) + "\n")
    if not all(row.met for row in rows):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
