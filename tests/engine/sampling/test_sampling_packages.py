"""Processors of packages: found, checked, refused with a reason; their faults affect only their
rows."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.metadata import EntryPoint, PathDistribution
from pathlib import Path

import numpy as np
import pytest
import torch
from sampling_rows import CPU, row, spec

from quire.core.decoding import Params, Processor, SamplerSpec
from quire.core.errors import EngineError, InvalidArgument
from quire.engine.sampling import registry as registries
from quire.engine.sampling.declarations import Number
from quire.engine.sampling.parameters import check_sampler
from quire.engine.sampling.plan import SamplingPlan
from quire.engine.sampling.protocol import ENTRY_POINT_GROUP, PROTOCOL_VERSION, History, Rows
from quire.engine.sampling.registry import STANDARD, Registry, load
from quire.engine.sampling.table import SamplerTable

VOCAB = 30


class Only:
    """Leaves one token of each row, or fails as the test chooses."""

    name = "only"
    protocol_version = PROTOCOL_VERSION
    parameters = {"token": Number(0, 99, integer=True, default=7)}  # noqa: RUF012
    needs_history = False

    def bind(self, params: Sequence[Params], rows: Rows) -> Only:
        bound = type(self)()
        bound.tokens = torch.tensor([int(one["token"]) for one in params])  # type: ignore[arg-type]
        return bound

    def __call__(self, scores_SV: torch.Tensor, history: History) -> torch.Tensor:
        assert history.tokens_SL.shape == (len(scores_SV), 0)
        alone = torch.full_like(scores_SV, -torch.inf)
        return alone.scatter(1, self.tokens[:, None], scores_SV.gather(1, self.tokens[:, None]))


class OldVersion(Only):
    protocol_version = PROTOCOL_VERSION - 1


class OtherName(Only):
    name = "other"


class Mine(Only):
    name = "mine"


class Misdeclared(Only):
    parameters = {"token": (0, 99)}  # type: ignore[assignment]  # noqa: RUF012


class Incomplete:
    name = "only"
    protocol_version = PROTOCOL_VERSION


class Raising(Only):
    name = "raising"

    def __call__(self, scores_SV: torch.Tensor, history: History) -> torch.Tensor:
        raise ZeroDivisionError("by design")


class NotBinding(Only):
    name = "not_binding"

    def bind(self, params: Sequence[Params], rows: Rows) -> Only:
        raise RuntimeError("cannot bind")


class Misshapen(Only):
    name = "misshapen"

    def __call__(self, scores_SV: torch.Tensor, history: History) -> torch.Tensor:
        return scores_SV[:, 1:]


ready = Only()


def points(**names: str) -> list[EntryPoint]:
    return [
        EntryPoint(name, f"{__name__}:{attribute}", ENTRY_POINT_GROUP)
        for name, attribute in names.items()
    ]


def test_classes_and_instances_are_found() -> None:
    for attribute in ("Only", "ready"):
        found = load(points(only=attribute))
        assert found.kinds.keys() == {*STANDARD, "only"}
        assert found.kinds["only"].source is not None
        assert found.refused == {}


@pytest.mark.parametrize(
    ("name", "attribute", "reason"),
    [
        ("only", "OldVersion", "written for version 0 of the processor protocol and this engine"),
        ("only", "OtherName", "it is called 'other', its entry point 'only'"),
        ("only", "Misdeclared", r"its parameters \['token'\] are not declared"),
        ("only", "Incomplete", "it lacks one of"),
        ("only", "Missing", "loading .*:Missing failed: AttributeError"),
        ("only", "VOCAB", "written for version None"),
    ],
)
def test_a_processor_that_cannot_be_used_is_refused_with_the_reason(
    name: str, attribute: str, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    found = load(points(**{name: attribute}))
    assert found.kinds.keys() == STANDARD.keys()
    with pytest.raises(InvalidArgument, match=f"processor '{name}' cannot be used: .*{reason}"):
        check_sampler(SamplerSpec((Processor(name),)), VOCAB, found)
    assert f"processor {name} is refused" in caplog.text


def test_a_refusal_names_the_package(tmp_path: Path) -> None:
    place = tmp_path / "sharper-1.0.dist-info"
    place.mkdir()
    (place / "METADATA").write_text("Name: sharper\nVersion: 1.0\n")
    (place / "entry_points.txt").write_text(
        f"[{ENTRY_POINT_GROUP}]\nonly = {__name__}:OldVersion\nmine = {__name__}:Mine\n"
    )
    found = load(PathDistribution(place).entry_points)
    assert found.refused["only"].endswith("(package sharper)")
    assert found.kinds["mine"].source == "sharper"


def test_a_name_that_is_taken_stays_with_its_owner() -> None:
    class TopK(Only):
        name = "top_k"

    sys.modules[__name__].TopK = TopK  # type: ignore[attr-defined]
    found = load([*points(top_k="TopK"), *points(only="Only"), *points(only="Only")])
    assert found.kinds["top_k"] is STANDARD["top_k"]
    assert found.refused == {}


def plan_of(samplers: Sequence[SamplerSpec], found: Registry) -> SamplingPlan:
    table = SamplerTable(len(samplers), VOCAB, CPU, found)
    for place, sampler in enumerate(samplers):
        check_sampler(sampler, VOCAB, found)
        table.set(place, row(sampler))
    return SamplingPlan.over(table, np.arange(len(samplers)))


def test_it_works_beside_standard_ones() -> None:
    found = load(points(only="Only"))
    logits = torch.randn(4, VOCAB)
    samplers = [
        spec([("only", {"token": 3})]),
        spec(),
        spec([("top_k", {"k": 20}), ("only", {}), ("temperature", {"temperature": 2.0})]),
        spec([("only", {"token": 11})]),
    ]
    logits[2, 7] = 9.0
    tokens, ok = plan_of(samplers, found).sample(logits, np.arange(4))
    assert ok.all()
    assert tokens.tolist() == [3, int(logits[1].argmax()), 7, 11]


@pytest.mark.parametrize(
    ("attribute", "reason"),
    [
        ("Raising", "processor 'raising' failed: ZeroDivisionError"),
        ("NotBinding", "processor 'not_binding' failed: RuntimeError"),
        ("Misshapen", "must return scores of the shape"),
    ],
)
def test_a_fault_ends_its_own_rows(attribute: str, reason: str) -> None:
    name = getattr(sys.modules[__name__], attribute).name
    found = load(points(**{name: attribute}))
    plan = plan_of([spec(), spec([(name, {})]), spec([("top_k", {"k": 1})])], found)
    for _ in range(2):
        tokens, ok = plan.sample(torch.eye(3, VOCAB), np.arange(3))
        assert ok.tolist() == [True, False, True]
        assert (tokens[0], tokens[2]) == (0, 2)
    error = plan.error_of(1)
    assert isinstance(error, EngineError)
    assert reason in error.message
    assert plan.error_of(0) is None


def test_the_environment_is_looked_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(
        registries, "entry_points", lambda group: asked.append(group) or points(only="Only")
    )
    registries.installed.cache_clear()
    try:
        assert "only" in registries.installed().kinds
        assert "only" in registries.installed().kinds
        assert asked == ["quire.processors"]
    finally:
        registries.installed.cache_clear()
