"""Makes a checkpoint that serves longer prompts than it was made for, for timings alone."""

from __future__ import annotations

import json
from pathlib import Path

NUM_POSITIONS = 8192


def widened(directory: Path, scratch: Path) -> Path:
    """Return the checkpoint that was written to ``scratch``, with ``NUM_POSITIONS`` positions."""
    for path in directory.iterdir():
        if path.name != "config.json":
            (scratch / path.name).symlink_to(path.resolve())
    config = json.loads((directory / "config.json").read_text())
    config["max_position_embeddings"] = NUM_POSITIONS
    (scratch / "config.json").write_text(json.dumps(config))
    return scratch
