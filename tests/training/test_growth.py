"""A deeper model has the logits of the model that it grew from, until it is trained."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

from training.attention import RowGroup
from training.export import DEFAULT_TARGET, export_run
from training.growth import deepen, layer_sources
from training.tokenizer import load
from training.train import Plan, Stage, Trainer

TOKENS = torch.tensor([0, 20, 30, 40, 50])
STAGES = (Stage(0, {"lists": 1.0}),)


def _trainer(folder: Path, num_layers: int) -> Trainer:
    load(DEFAULT_TARGET / "tokenizer.json").save(str(folder / "tokenizer.json"))
    shape = {"num_layers": num_layers}
    plan = Plan(1, STAGES, ((0, 1.0),), num_tokens=128, shape=shape, dtype="float32")
    trainer = Trainer(plan, folder)
    trainer.begin_with(DEFAULT_TARGET)
    return trainer


def _logits(trainer: Trainer) -> torch.Tensor:
    with torch.no_grad():
        hidden_ND = trainer.model(TOKENS, torch.arange(len(TOKENS)), (RowGroup(1, len(TOKENS)),))
        return F.linear(hidden_ND, trainer.model.embedding)


def test_a_run_with_more_layers_begins_with_the_same_logits(tmp_path: Path) -> None:
    before, deeper = _trainer(tmp_path, 6), _trainer(tmp_path, 9)
    assert len(deeper.model.blocks) == 9
    assert torch.equal(_logits(deeper), _logits(before))


def test_training_moves_the_layers_that_were_added(tmp_path: Path) -> None:
    deeper = _trainer(tmp_path, 9)
    added = [layer for layer, (_, copy) in enumerate(layer_sources(6, 9)) if copy]
    named = dict(deeper.model.named_parameters())
    outputs = [named[f"blocks.{layer}.{part}.weight"] for layer in added for part in ("o", "down")]
    assert not any(output.any() for output in outputs)
    deeper.advance()
    assert all(output.any() for output in outputs)


def test_the_mean_with_a_model_of_fewer_layers_has_its_deeper_form(tmp_path: Path) -> None:
    deeper = _trainer(tmp_path, 8)
    deeper.save()
    target = tmp_path / "mean"
    export_run(tmp_path, target, deeper.plan, mean=True, other=DEFAULT_TARGET, share=0.5)
    mean = load_file(target / "model.safetensors")
    wanted = deepen(load_file(DEFAULT_TARGET / "model.safetensors"), 8)
    assert mean.keys() == wanted.keys()
    assert all(torch.equal(mean[name], wanted[name]) for name in wanted)


def test_layers_are_added_evenly_and_behind_those_that_they_copy() -> None:
    assert layer_sources(3, 5) == [(0, False), (0, True), (1, False), (1, True), (2, False)]
    assert layer_sources(2, 2) == [(0, False), (1, False)]


def test_every_layer_stays_and_fewer_are_refused() -> None:
    tensors = load_file(DEFAULT_TARGET / "model.safetensors")
    assert {source for source, copy in layer_sources(6, 10) if not copy} == set(range(6))
    same = deepen(tensors, 6)
    assert same.keys() == tensors.keys()
    assert all(same[name] is tensors[name] for name in tensors)
    with pytest.raises(ValueError, match="6 layers cannot become 4"):
        deepen(tensors, 4)
