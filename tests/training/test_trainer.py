"""The trainer's parts against plain references."""

import itertools
from pathlib import Path
from random import Random

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

from training.attention import RowGroup, attend
from training.batches import batch_of_step, encode, token_id
from training.corpus.document import Split
from training.corpus.mixture import SAMPLERS
from training.decoding import PlainLlama, _Cache
from training.evaluate import wilson_lower_bound
from training.export import DEFAULT_TARGET, export, mean_with
from training.model import Model, ModelShape, llama_name, weighted_loss
from training.optim import Optimizer, Rates, orthogonalize
from training.scoring import parse_call
from training.tokenizer import load
from training.train import DEFAULT_PLAN, Plan, Stage, Trainer

TOKENIZER = DEFAULT_TARGET / "tokenizer.json"
WEIGHTS_FILE = "model.safetensors"
WEIGHTS = dict.fromkeys(SAMPLERS, 1.0)


def test_attention_equals_the_dense_reference() -> None:
    torch.manual_seed(0)
    groups = [RowGroup(3, 48), RowGroup(1, 300)]
    size = sum(g.num_rows * g.length for g in groups)
    q, k, v = (torch.randn(size, heads, 16, requires_grad=True) for heads in (4, 2, 2))
    output, pull = attend(q, k, v, groups), torch.randn(size, 64)
    gradients = torch.autograd.grad(output, (q, k, v), pull)
    rows, start = [], 0
    for length in itertools.chain.from_iterable([g.length] * g.num_rows for g in groups):
        q1, k1, v1 = (t[start : start + length].transpose(0, 1)[None] for t in (q, k, v))
        y = F.scaled_dot_product_attention(q1, k1, v1, is_causal=True, enable_gqa=True)
        rows.append(y[0].transpose(0, 1).flatten(1))
        start += length
    reference = torch.cat(rows)
    torch.testing.assert_close(output, reference)
    for ours, theirs in zip(
        gradients, torch.autograd.grad(reference, (q, k, v), pull), strict=True
    ):
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)


def test_a_batch_holds_whole_documents_and_is_repeatable() -> None:
    tokenizer = load(TOKENIZER)
    first = batch_of_step(tokenizer, 0, 5, WEIGHTS, 4096, 1024)
    again = batch_of_step(tokenizer, 0, 5, WEIGHTS, 4096, 1024)
    assert torch.equal(first.tokens_N, again.tokens_N)
    assert torch.equal(first.weights_N, again.weights_N)
    assert len(first.tokens_N) == sum(g.num_rows * g.length for g in first.groups) == 4096
    assert max(g.length for g in first.groups) <= 1024
    starts = first.tokens_N[first.positions_N == 0]
    bos = token_id(tokenizer, "<|bos|>")
    assert [token == bos for token in starts.tolist()].count(False) <= 1
    pad = token_id(tokenizer, "<|pad|>")
    inside = (first.positions_N[1:] > 0) & first.tokens_N[1:].ne(pad)
    assert torch.equal(first.targets_N[:-1][inside], first.tokens_N[1:][inside])


def test_segments_encode_like_the_whole_text() -> None:
    tokenizer, rng = load(TOKENIZER), Random(2)
    for sample in SAMPLERS.values():
        document = sample(rng, Split.TRAIN)
        assert encode(tokenizer, document, rng).tokens == tokenizer.encode(document.text).ids


def test_orthogonalize_evens_out_singular_values() -> None:
    torch.manual_seed(0)
    values = torch.linalg.svdvals(orthogonalize(torch.randn(2, 32, 64)).float())
    assert values.min() > 0.5
    assert values.max() < 1.5


def test_training_lowers_the_loss() -> None:
    torch.manual_seed(0)
    tokenizer = load(TOKENIZER)
    model = Model(ModelShape(tokenizer.get_vocab_size(), width=32, num_layers=1, hidden_size=64))
    optimizer = Optimizer(model, Rates())
    batch = batch_of_step(tokenizer, 0, 0, {"arithmetic": 1.0}, 512, 512)
    losses = []
    for _ in range(8):
        hidden_ND = model(batch.tokens_N, batch.positions_N, batch.groups)
        loss, answers = weighted_loss(model, hidden_ND, batch.targets_N, batch.weights_N)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step(1.0)
        losses.append(float(answers))
    assert losses[-1] < 0.9 * losses[0]


def test_a_run_resumes_where_it_stopped(tmp_path: Path) -> None:
    load(TOKENIZER).save(str(tmp_path / "tokenizer.json"))
    small = {"width": 32, "num_layers": 2, "hidden_size": 64}
    stages = (Stage(0, {"lists": 1.0}),)
    plan = Plan(4, stages, ((0, 1.0),), num_tokens=128, shape=small)
    straight = Trainer(plan, tmp_path)
    losses = [float(straight.advance()) for _ in range(4)]
    halted = Trainer(plan, tmp_path)
    for _ in range(2):
        halted.advance()
    halted.save()
    resumed = Trainer(plan, tmp_path)
    resumed.resume()
    assert resumed.step == 2
    assert [float(resumed.advance()) for _ in range(2)] == pytest.approx(losses[2:], rel=1e-3)


def test_a_run_begins_with_the_weights_of_an_exported_model(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        folder.mkdir()
        load(TOKENIZER).save(str(folder / "tokenizer.json"))
    plan = Plan(
        1, (Stage(0, {"lists": 1.0}),), ((0, 1.0),), shape={"num_layers": 6}, dtype="float32"
    )
    trainer = Trainer(plan, first)
    assert not trainer.resume()
    trainer.begin_with(DEFAULT_TARGET)
    shipped = PlainLlama(DEFAULT_TARGET)
    tokens = torch.tensor([token_id(trainer.tokenizer, "<|bos|>"), 20, 30, 40])
    hidden_ND = trainer.model(tokens, torch.arange(4), (RowGroup(1, 4),))
    logits_V = F.linear(hidden_ND[-1], trainer.model.embedding)
    visible = torch.ones(4, 4, dtype=torch.bool).tril()[None, None]
    expected = shipped.forward(tokens[None], torch.arange(4)[None], visible, _Cache())
    torch.testing.assert_close(logits_V, expected[0, -1] if expected.dim() == 3 else expected[0])
    export(trainer.mean, trainer.model.shape, trainer.tokenizer, tmp_path / "again")
    again, before = (load_file(d / WEIGHTS_FILE) for d in (tmp_path / "again", DEFAULT_TARGET))
    assert all(torch.equal(again[name], before[name]) for name in before)


@pytest.mark.parametrize(("share", "wanted"), [(0.5, 2.0), (0.25, 1.5), (1.0, 3.0)])
def test_the_mean_with_an_exported_model_has_its_share_of_each(share: float, wanted: float) -> None:
    before = load_file(DEFAULT_TARGET / WEIGHTS_FILE)
    names = {"embedding": "model.embed_tokens.weight", "norm.weight": "model.norm.weight"}
    weights = {name: 3 * before[there].float() for name, there in names.items()}
    mean = mean_with(weights, before, share)
    for name, there in names.items():
        torch.testing.assert_close(mean[name], wanted * before[there].float(), rtol=1e-2, atol=0)


def test_a_run_refuses_a_model_of_another_tokenizer(tmp_path: Path) -> None:
    tokenizer = load(TOKENIZER)
    tokenizer.add_tokens(["another"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    small = {"width": 32, "num_layers": 2, "hidden_size": 64}
    trainer = Trainer(Plan(1, (), ((0, 1.0),), shape=small), tmp_path)
    with pytest.raises(ValueError, match="has another tokenizer"):
        trainer.begin_with(DEFAULT_TARGET)


def test_a_plan_interpolates_rates_and_switches_stages() -> None:
    stages = (Stage(0, {"lists": 1.0}), Stage(500, {"facts": 1.0}))
    plan = Plan(1000, stages, ((0, 0.0), (100, 1.0), (600, 1.0), (1000, 0.0)))
    assert plan.scale_at(10) == pytest.approx(0.1)
    assert plan.scale_at(400) == 1.0
    assert plan.scale_at(800) == pytest.approx(0.5)
    assert plan.scale_at(1000) == 0.0
    assert plan.weights_at(499) == {"lists": 1.0}
    assert plan.weights_at(500) == {"facts": 1.0}


@pytest.mark.parametrize(
    "path",
    sorted(DEFAULT_PLAN.parent.glob("*.json")),
)
def test_the_committed_plans_name_families_that_exist(path: Path) -> None:
    plan = Plan.read(path)
    assert all(set(stage.weights) <= set(SAMPLERS) for stage in plan.stages)


def test_parameters_get_the_names_of_llama() -> None:
    assert llama_name("blocks.3.q.weight") == "model.layers.3.self_attn.q_proj.weight"
    assert llama_name("embedding") == "model.embed_tokens.weight"


def test_calls_compare_as_json_and_repeated_keys_are_wrong() -> None:
    call = '<tool_call>{"name": "f", "arguments": {"a": 1, "b": "x"}}</tool_call>'
    swapped = '<tool_call>{"name": "f", "arguments": {"b": "x", "a": 1}}</tool_call>'
    assert parse_call(call) == parse_call(swapped) is not None
    assert parse_call(call) != parse_call(call.replace("1", '"1"'))
    assert parse_call(call.replace('"b"', '"a"')) is None
    assert parse_call("f(a=1)") is None


def test_wilson_bound() -> None:
    assert wilson_lower_bound(493, 500) == pytest.approx(0.9714, abs=2e-4)
    assert wilson_lower_bound(0, 10) == pytest.approx(0.0, abs=1e-9)
