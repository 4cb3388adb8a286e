"""docs/reference/models.md against the engine: every architecture, rotation and packing."""

from __future__ import annotations

import re
from typing import get_args

from docs_markdown import ROOT

from quire.engine.encoders.config import ARCHITECTURES
from quire.engine.layers.rope_config import RopeKind
from quire.engine.models.registry import FAMILIES
from quire.engine.quantization.registry import SCHEMES

PAGE = (ROOT / "docs" / "reference" / "models.md").read_text(encoding="utf-8")


def first_column(heading: str) -> set[str]:
    section = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    return set(re.findall(r"^\| `([^`]+)`", section, re.MULTILINE))


def test_every_architecture_is_documented_and_no_other() -> None:
    served = {name for family in FAMILIES.values() for name in family.architectures}
    assert first_column("Families") == served


def test_every_encoder_is_documented_and_no_other() -> None:
    section = PAGE.split("\n## Encoders\n")[1].split("\n## ")[0]
    rows = [line for line in section.split("\n") if line.startswith("| `")]
    documented = {
        name: "cross-encoder" in row for row in rows for name in re.findall(r"`(\w+)`", row)
    }
    assert documented == {name: head != "none" for name, (_, head) in ARCHITECTURES.items()}


def test_every_way_of_packing_is_documented() -> None:
    assert first_column("Quantised checkpoints") == {*SCHEMES, "compressed-tensors"}


def test_every_rotation_is_documented() -> None:
    for kind in set(get_args(RopeKind)) - {"none"}:
        assert f"`{kind}`" in PAGE
