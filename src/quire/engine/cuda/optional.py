"""Checks which optional packages are available, and names what to install if one is not.

``triton`` and ``flashinfer`` are imported only after one of these checks.
"""

from __future__ import annotations

import warnings
from functools import cache
from importlib import import_module
from types import ModuleType

from quire.core.errors import ConfigError

_TRITON = (
    "the Triton kernels cannot be loaded ({reason}): install a CUDA build of PyTorch, which brings "
    "triton along, or pip install 'quire[cuda]'"
)
_FLASHINFER = "FlashInfer cannot be loaded ({reason}): pip install 'quire[cuda]'"


@cache
def triton_missing() -> str | None:
    """Why the Triton kernels cannot be used, with the remedy; None if they can."""
    return _reason("triton", _TRITON)


@cache
def flashinfer_missing() -> str | None:
    """Why FlashInfer cannot be used, with the remedy; None if it can."""
    return _reason("flashinfer", _FLASHINFER)


def load_kernels(name: str) -> ModuleType:
    """The module ``name`` of ``cuda.kernels``.

    Raises:
        ConfigError: triton is not installed.
    """
    if (missing := triton_missing()) is not None:
        raise ConfigError(missing)
    return import_module(f"quire.engine.cuda.kernels.{name}")


def load_flashinfer() -> ModuleType:
    """The package ``flashinfer``.

    Raises:
        ConfigError: it is not installed, or fails to load.
    """
    if (missing := flashinfer_missing()) is not None:
        raise ConfigError(missing)
    return import_module("flashinfer")


def _reason(package: str, message: str) -> str | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # warnings on import are not about this program's use
            import_module(package)
    except Exception as exc:  # a broken native build may raise any type
        return message.format(reason=f"{type(exc).__name__}: {exc}".splitlines()[0][:200])
    return None
