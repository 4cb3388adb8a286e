"""On a CUDA device: the same tokens, and no operation that makes the host wait."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from sampling_cases import CASES, Case
from sampling_reference import processors
from sampling_rows import row, spec

from quire.engine.sampling.plan import SamplingPlan

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.fixture
def _no_waiting() -> Iterator[None]:
    yield
    torch.cuda.set_sync_debug_mode("default")


@pytest.mark.usefixtures("_no_waiting")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_case_is_the_reference(case: Case) -> None:
    device = torch.device("cuda")
    rows = [row(spec(processors(one), greedy=one.greedy, seed=one.seed)) for one in case.parameters]
    logits = torch.from_numpy(case.logits_SV).to(device)
    positions = torch.tensor(case.positions, device=device)
    plan = SamplingPlan(rows, logits.shape[1], device)
    torch.cuda.set_sync_debug_mode("error")
    tokens, ok = plan.choose(logits, positions)
    torch.cuda.set_sync_debug_mode("default")
    pairs = zip(tokens.tolist(), ok.tolist(), strict=True)
    assert [token if good else None for token, good in pairs] == case.expected()
