"""``quire models`` without a node."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from cli_invoke import invoke

from quire.cli.configuration import default_name
from quire.cli.models import summarise
from quire.core.errors import UnsupportedModel

SIZES = {
    "num_hidden_layers": 28,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 1000,
    "max_position_embeddings": 40960,
}


def test_the_shipped_model_and_named_directories(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    config = {**SIZES, "model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (tmp_path / "model.safetensors").write_bytes(bytes(3 << 20))
    ran = invoke(capsys, "models", str(tmp_path))
    assert ran.code == 0
    mini, reader, other = (line.split() for line in ran.out.splitlines() if "MiB" in line)
    assert mini[:2] == ["quire-mini", "llama"]
    assert reader[:2] == ["quire-reader", "llama"]
    assert other == [tmp_path.name, "qwen3", "28", "64", "40960", "3", "MiB", "model"]


def test_named_directories_are_described_also_beside_the_address_of_a_node(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("QUIRE_URL", "http://127.0.0.1:1")
    ran = invoke(capsys, "models", str(tmp_path / "none"))
    assert ran.code != 0
    assert "config.json" in ran.out + ran.err


def test_what_a_configuration_does_not_say_is_a_question_mark(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """And not the number or the word that Python has for nothing."""
    (tmp_path / "config.json").write_text('{"model_type": "unheard_of"}', encoding="utf-8")
    ran = invoke(capsys, "models", str(tmp_path))
    (line,) = (line for line in ran.out.splitlines() if line.split()[:1] == [tmp_path.name])
    assert line.split()[1:5] == ["unheard_of", "?", "?", "?"]


@pytest.mark.parametrize(
    ("changes", "code", "served", "part"),
    [
        ({"new_key": 3}, 0, "model", "new_key = 3"),
        ({"is_causal": False}, 1, "no", "both directions"),
        (
            {"model_type": "qwen3_vl", "architectures": ["Qwen3VLForConditionalGeneration"]},
            1,
            "no",
            "Nearest is Qwen3ForCausalLM",
        ),
        ({"architectures": ["Qwen3ForSequenceClassification"]}, 0, "encoder", ""),
    ],
)
def test_what_cannot_be_served_is_told(
    changes: dict[str, Any],
    code: int,
    served: str,
    part: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    config = {**SIZES, "model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], **changes}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    ran = invoke(capsys, "models", str(tmp_path))
    assert ran.code == code
    (line,) = (line for line in ran.out.splitlines() if line.split()[:1] == [tmp_path.name])
    assert line.split()[-1] == served
    assert part in ran.out


def test_a_directory_with_its_own_code_is_refused(tmp_path: Path) -> None:
    config = {"model_type": "x", "auto_map": {"AutoModel": "code.Model"}}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(UnsupportedModel):
        summarise(tmp_path)


def test_names(tmp_path: Path) -> None:
    assert default_name("org/model") == "org/model"
    assert default_name(str(tmp_path)) == tmp_path.name
