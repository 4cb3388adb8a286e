"""What the backend says where it cannot run."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from engine_driver import Driver

from quire.core.errors import ConfigError
from quire.engine.cuda import optional

no_device = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")


@no_device
@pytest.mark.parametrize(
    ("device", "reason"), [("auto", "built without CUDA|finds no CUDA"), ("cpu", "device is 'cpu'")]
)
def test_it_says_why_and_what_to_do(
    device: str, reason: str, make_driver: Callable[..., Driver]
) -> None:
    with pytest.raises(ConfigError, match=f"backend 'cuda' cannot run llama: .*({reason}).*: "):
        make_driver("llama", backend="cuda", device=device)


@no_device
def test_auto_passes_it_over(make_driver: Callable[..., Driver]) -> None:
    assert make_driver("llama").info.backend != "cuda"


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
