"""Chooses device, number format and threads for a model; does not know its layers."""

from __future__ import annotations

import os

import torch

from quire.core.config import DTypeName
from quire.core.errors import ConfigError

_DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}

_CACHE_RESIDENT_PARAMETERS = 32_000_000
"""Up to this size a step is bound by overhead, not by reading weights: float32 and one thread are
faster."""


_PARAMETERS_PER_THREAD = 2_000_000
"""With fewer parameters per thread, synchronising the threads takes longer than a kernel step."""


def choose_device(name: str) -> torch.device:
    """``auto``: CUDA when there is one, else the CPU.

    Raises:
        ConfigError: no such device on this machine.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as exc:
        # torch lists all kinds of devices that it knows, which are not those of Quire
        reason = str(exc).splitlines()[0]
        why = "" if reason.startswith("Expected one of") else f", which cannot be used ({reason})"
        raise ConfigError(
            f"device is {name!r}{why}: choose cpu, auto, or with a CUDA build cuda or cuda:1"
        ) from exc
    return device


def choose_dtype(
    name: DTypeName,
    device: torch.device,
    checkpoint: torch.dtype,
    num_parameters: int,
    has_kernel: bool,
) -> torch.dtype:
    """``auto``: the checkpoint's own format on accelerators.

    On CPUs, bfloat16 for large models that are stored in it, where the kernel runs them or the
    processor multiplies it natively; else float32. (Small models gain little and lose more: with
    the shipped model, 2 % of the greedy choices differ.) float16 is slow and inexact there.
    """
    if name != "auto":
        return _DTYPES[name]
    if device.type != "cpu":
        return checkpoint
    is_large = num_parameters > _CACHE_RESIDENT_PARAMETERS
    if checkpoint == torch.bfloat16 and is_large and (has_kernel or _multiplies_bfloat16()):
        return torch.bfloat16
    return torch.float32


def choose_num_threads(wanted: int | None, num_parameters: int, replicas: int = 1) -> int:
    """Threads for one PyTorch operation: one for small models, whose operations take less time than
    synchronising threads. ``replicas``: engines among which the cores are divided."""
    if wanted is None and num_parameters <= _CACHE_RESIDENT_PARAMETERS:
        return 1
    return wanted_threads(wanted, max(1, num_usable_cores() // replicas))


def choose_team_size(wanted: int | None, num_parameters: int, replicas: int = 1) -> int:
    """Threads of the CPU kernel. They synchronise in less than a microsecond, so even a model that
    fits into a cache gains from a second core, unless it is very small."""
    share = max(1, num_parameters // _PARAMETERS_PER_THREAD)
    return wanted_threads(wanted, min(max(1, num_usable_cores() // replicas), share))


def wanted_threads(wanted: int | None, default: int) -> int:
    if wanted is not None and wanted < 1:
        raise ConfigError(f"num_threads is {wanted}; it must be at least 1")
    return default if wanted is None else wanted


def num_usable_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _multiplies_bfloat16() -> bool:
    capabilities = torch.cpu.get_capabilities()
    return bool(capabilities.get("avx512_bf16") or capabilities.get("amx_bf16"))
