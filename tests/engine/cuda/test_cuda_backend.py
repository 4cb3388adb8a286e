"""The backend's reasons when it cannot run."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from engine_driver import Driver

from quire.core.config import EngineConfig, WeightsName
from quire.core.errors import ConfigError
from quire.core.ids import ModelId
from quire.engine.checkpoint.model_directory import ModelDirectory
from quire.engine.cuda import backend, optional
from quire.engine.cuda.backend import CudaBackend
from quire.engine.cuda.grouped_experts import has_grouped_product
from quire.engine.loading import load_model

no_device = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")


@no_device
@pytest.mark.parametrize(
    ("device", "reason"), [("auto", "built without CUDA|finds no CUDA"), ("cpu", "device is 'cpu'")]
)
def test_the_reason_and_the_remedy_are_given(
    device: str, reason: str, make_driver: Callable[..., Driver]
) -> None:
    with pytest.raises(ConfigError, match=f"backend 'cuda' cannot run llama: .*({reason}).*: "):
        make_driver("llama", backend="cuda", device=device)


@no_device
def test_auto_passes_it_over(make_driver: Callable[..., Driver]) -> None:
    assert make_driver("llama").info.backend != "cuda"


@pytest.mark.parametrize(
    ("capability", "weights", "reason"),
    [
        ((7, 5), "auto", "7.5, and 8.0 .* choose backend torch"),
        ((8, 0), "float8", "8.0, and weights float8 need 8.9 .* choose weights auto"),
        ((8, 6), "float8", "8.6, and weights float8 need 8.9"),
        ((8, 9), "float8", None),
        ((8, 0), "auto", None),
    ],
)
def test_what_an_old_device_cannot_run(
    capability: tuple[int, int],
    weights: WeightsName,
    reason: str | None,
    checkpoint: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A model loaded on this machine stands for one on that device."""
    config = EngineConfig(str(checkpoint("llama")), ModelId("m"), weights=weights, device="cpu")
    loaded = load_model(config, ModelDirectory(checkpoint("llama")))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a GPU")
    monkeypatch.setattr(backend, "triton_missing", lambda: None)
    found = CudaBackend().unsupported(config, replace(loaded, device=torch.device("cuda")))
    if reason is None:
        assert found is None
    else:
        assert found is not None
        assert re.search(reason, found)


@pytest.mark.parametrize(
    ("free", "expected"), [(60 << 30, 52 << 30), (8 << 30, 256 << 20), (1 << 30, 256 << 20)]
)
def test_a_cache_of_default_size_takes_the_memory_that_the_weights_leave(
    free: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free, 80 << 30))
    assert backend.cache_bytes(torch.device("cuda")) == expected


@pytest.mark.parametrize(
    ("capability", "expected"),
    [((8, 9), False), ((9, 0), True), ((10, 3), True), ((12, 0), False)],
)
def test_grouped_products_only_where_they_do_not_wait(
    capability: tuple[int, int], expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    weight: Any = SimpleNamespace(
        dtype=torch.bfloat16, shape=(4, 64, 32), device=torch.device("cuda")
    )
    assert has_grouped_product(weight) is expected


def test_missing_packages_name_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> None:
        raise OSError(f"{name}.so: cannot open shared object file")

    monkeypatch.setattr(optional, "import_module", refuse)
    for missing in (optional.triton_missing, optional.flashinfer_missing):
        missing.cache_clear()
        reason = missing()
        missing.cache_clear()
        assert reason is not None
        assert "cannot open shared object file" in reason
        assert "pip install 'quire[cuda]'" in reason
    with pytest.raises(ConfigError, match="quire\\[cuda\\]"):
        optional.load_flashinfer()
    optional.flashinfer_missing.cache_clear()
