"""Writes the model card from the scores that ``training.evaluate --json`` measured."""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from safetensors import safe_open

from training.export import DEFAULT_TARGET

TEMPLATE = Path(__file__).parent / "templates" / "card.md"


def count_parameters(directory: Path) -> int:
    """Return how many numbers are stored in the weight file; the output head is the embedding."""
    total = 0
    with safe_open(directory / "model.safetensors", "pt") as weights:
        for name in weights.keys():  # noqa: SIM118 (the file is no mapping)
            size = 1
            for extent in weights.get_slice(name).get_shape():
                size *= extent
            total += size
    return total


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return the scores as a Markdown table."""
    lines = ["| task | n | exact match | lower bound | bar |", "| --- | --- | --- | --- | --- |"]
    for row in rows:
        bar = ""
        if row["bar"] is not None:
            verdict = "met" if row["lower_bound"] >= row["bar"] else "missed"
            bar = f"{row['bar']:.0%} {verdict}"
        scores = f"{row['exact_match']:.1%} | {row['lower_bound']:.1%}"
        lines.append(f"| {row['task']} | {row['items']} | {scores} | {bar} |")
    return "\n".join(lines)


def card(directory: Path, rows: Sequence[dict[str, Any]]) -> str:
    """Return the text of ``README.md``."""
    config = json.loads((directory / "config.json").read_text())
    return TEMPLATE.read_text().format(
        parameters=f"{count_parameters(directory) / 1e6:.1f} million",
        layers=config["num_hidden_layers"],
        width=config["hidden_size"],
        heads=config["num_attention_heads"],
        kv_heads=config["num_key_value_heads"],
        head_size=config["head_dim"],
        vocabulary=config["vocab_size"],
        positions=config["max_position_embeddings"],
        table=table(rows),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("scores", type=Path, help="the JSON of training.evaluate")
    parser.add_argument("--model", type=Path, default=DEFAULT_TARGET)
    options = parser.parse_args()
    rows = json.loads(options.scores.read_text())
    (options.model / "README.md").write_text(card(options.model, rows))


if __name__ == "__main__":
    main()
