"""When a chat takes its first tokens from the lease that its header names."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from quire.core.ids import EngineId, ModelId
from quire.core.lease_commands import LeaseName
from quire.programs.builtin import CompletionRequest
from quire.server.microserving import received
from quire.server.microserving.prompts import ExchangePrompt

PROMPT = tuple(range(20, 40))
LEASE = LeaseName(EngineId("e"), 1, 2, b"k" * 16)
ADDRESS = {
    "content": "c-1",
    "adapter": "weights-1",
    "end": 19,
    "tokens": ExchangePrompt(PROMPT).digest(19),
}
ADAPTER = SimpleNamespace(name="a", digest="weights-1")
MODEL: Any = SimpleNamespace(adapter="a", info=SimpleNamespace(content="c-1", adapters=(ADAPTER,)))


@pytest.mark.parametrize(
    ("other", "is_taken"),
    [
        ({}, True),
        ({"content": "c-2"}, False),
        ({"adapter": None}, False),
        ({"adapter": "weights-2"}, False),
        ({"end": 18}, False),
        ({"end": 20, "tokens": ExchangePrompt(PROMPT).digest(20)}, False),
    ],
)
def test_only_a_lease_of_its_own_beginning_model_and_adapter_is_taken(
    monkeypatch: pytest.MonkeyPatch, other: dict[str, Any], is_taken: bool
) -> None:
    address = SimpleNamespace(**{**ADDRESS, **other})
    addresses = SimpleNamespace(
        check_sender=lambda headers: None,
        open=lambda sealed, tenant: address,
        lease=lambda opened: LEASE,
    )
    monkeypatch.setattr(received, "context_of", lambda _: SimpleNamespace(addresses=addresses))
    monkeypatch.setattr(received, "caller_of", lambda _: "red")
    request: Any = SimpleNamespace(headers={"x-quire-received": "sealed"})
    asked = CompletionRequest(PROMPT, 4, ModelId("m"))
    taken = replace(asked, lease=LEASE, num_leased=19)
    assert received.with_received(request, MODEL, asked) == (taken if is_taken else asked)
