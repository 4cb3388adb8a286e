"""``quire models`` without a node."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli_invoke import invoke

from quire.cli.models import default_name, summarise
from quire.core.errors import UnsupportedModel


def test_the_shipped_model_and_named_directories(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    config = {"model_type": "qwen3", "num_hidden_layers": 28, "max_position_embeddings": 40960}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (tmp_path / "model.safetensors").write_bytes(bytes(3 << 20))
    ran = invoke(capsys, "models", str(tmp_path))
    assert ran.code == 0
    mini, other = (line.split() for line in ran.out.splitlines() if "MiB" in line)
    assert mini[:2] == ["quire-mini", "llama"]
    assert other == [tmp_path.name, "qwen3", "28", "?", "40960", "3", "MiB"]


def test_a_directory_with_its_own_code_is_refused(tmp_path: Path) -> None:
    config = {"model_type": "x", "auto_map": {"AutoModel": "code.Model"}}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(UnsupportedModel):
        summarise(tmp_path)


def test_names(tmp_path: Path) -> None:
    assert default_name("org/model") == "org/model"
    assert default_name(str(tmp_path)) == tmp_path.name
