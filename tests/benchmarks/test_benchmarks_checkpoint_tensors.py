"""The weights that llama.cpp gets are those of the checkpoint."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from benchmarks.peers.checkpoint_tensors import interleaved, llama_name, llama_tensors

HEADS, KV_HEADS, HEAD_DIM, HIDDEN = 4, 2, 8, 32


@pytest.fixture
def checkpoint(tmp_path: Path) -> dict[str, torch.Tensor]:
    """One in two files, as large ones are, with the tensors that differ in kind."""
    torch.manual_seed(0)
    shapes = {
        "model.embed_tokens.weight": (50, HIDDEN),
        "model.layers.0.self_attn.q_proj.weight": (HEADS * HEAD_DIM, HIDDEN),
        "model.layers.0.self_attn.k_proj.weight": (KV_HEADS * HEAD_DIM, HIDDEN),
        "model.layers.11.self_attn.v_proj.weight": (KV_HEADS * HEAD_DIM, HIDDEN),
        "model.layers.11.input_layernorm.weight": (HIDDEN,),
    }
    tensors = {name: torch.randn(shape).to(torch.bfloat16) for name, shape in shapes.items()}
    tensors["model.norm.weight"] = torch.randn(HIDDEN)
    names = sorted(tensors)
    for number, part in enumerate((names[:3], names[3:])):
        save_file({name: tensors[name] for name in part}, tmp_path / f"{number}.safetensors")
    config = {"num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return tensors


def test_every_tensor_arrives_exactly(tmp_path: Path, checkpoint: dict[str, torch.Tensor]) -> None:
    found = dict(llama_tensors(tmp_path))
    assert set(found) == {llama_name(name) for name in checkpoint}
    for name in ("model.embed_tokens.weight", "model.norm.weight"):
        expected = checkpoint[name].float().numpy()
        np.testing.assert_array_equal(found[llama_name(name)], expected)
    value = checkpoint["model.layers.11.self_attn.v_proj.weight"].float().numpy()
    np.testing.assert_array_equal(found["blk.11.attn_v.weight"], value)


@pytest.mark.parametrize(("kind", "heads"), [("q", HEADS), ("k", KV_HEADS)])
def test_rotary_pairs_become_neighbours(
    tmp_path: Path, checkpoint: dict[str, torch.Tensor], kind: str, heads: int
) -> None:
    expected = checkpoint[f"model.layers.0.self_attn.{kind}_proj.weight"].float().numpy()
    found = dict(llama_tensors(tmp_path))[f"blk.0.attn_{kind}.weight"]
    half = HEAD_DIM // 2
    for head in range(heads):
        for pair in range(half):
            row = head * HEAD_DIM
            np.testing.assert_array_equal(found[row + 2 * pair], expected[row + pair])
            np.testing.assert_array_equal(found[row + 2 * pair + 1], expected[row + pair + half])


def test_interleaving_keeps_the_shape_of_a_bias() -> None:
    bias = np.arange(2 * HEAD_DIM, dtype=np.float32)
    assert interleaved(bias, 2).tolist()[:4] == [0, 4, 1, 5]


def test_what_llama_does_not_have_is_refused() -> None:
    with pytest.raises(KeyError, match="q_norm"):
        llama_name("model.layers.0.self_attn.q_norm.weight")


def test_another_type_is_refused_by_name(tmp_path: Path) -> None:
    save_file(
        {"model.norm.weight": torch.zeros(4, dtype=torch.float16)}, tmp_path / "a.safetensors"
    )
    (tmp_path / "config.json").write_text("{}", encoding="utf-8")
    with pytest.raises(ValueError, match=r"model\.norm\.weight is F16"):
        dict(llama_tensors(tmp_path))
