"""Collects what this machine has, as plain values: processor, memory, compiler, torch, optional
packages.

``doctor`` reports the values. Knows no engine. torch is queried in a child process, so that a
broken installation is a finding and not a crash.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Any

import msgspec

from quire.cli.compiled_control import form_of_nodes

CPU_FEATURES = ("avx2", "fma", "avx512f", "avx512_bf16", "avx512_vnni", "amx_bf16", "asimd", "bf16")
"""Processor features that the kernel libraries need, by the kernel's names."""

COMPILERS = ("c++", "g++", "clang++")

_PROBE = """
import json, torch
from quire.engine.cpu.library import kernel_report
from quire.engine.device import num_usable_cores
from quire.engine.sampling.registry import installed
kernel = kernel_report()
cuda = torch.cuda.is_available()
print(json.dumps({
    "version": torch.__version__,
    "cpu_capability": torch.backends.cpu.get_cpu_capability(),
    "num_threads": torch.get_num_threads(),
    "cuda_version": torch.version.cuda,
    "devices": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    if cuda else [],
    "processors": sorted(installed().kinds),
    "refused_processors": dict(installed().refused),
    "kernel_isa": kernel.chosen,
    "kernel_problems": {one.isa: one.problem for one in kernel.states if one.problem},
    "kernel_threads": num_usable_cores(),
}))
"""
_PROBE_TIMEOUT_S = 120.0


class TorchBuild(msgspec.Struct, frozen=True):
    """What torch and the engine's backends report.

    ``devices`` names CUDA devices, ``processors`` the sampling processors that requests may name;
    ``refused_processors`` are installed but unusable, with the reason. ``kernel_isa`` is the
    instruction set that the CPU kernel will use (``None``: no kernel); ``kernel_problems`` says why
    no other.
    """

    version: str
    cpu_capability: str
    num_threads: int
    cuda_version: str | None
    devices: list[str]
    processors: list[str] = []
    refused_processors: dict[str, str] = {}
    kernel_isa: str | None = None
    kernel_problems: dict[str, str] = {}
    kernel_threads: int = 1


@dataclass(frozen=True, slots=True)
class Extra:
    """One optional set of dependencies. ``missing`` lists those that are not installed."""

    name: str
    packages: tuple[str, ...]
    missing: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Machine:
    """``torch`` is the build, or the reason why it could not be queried.

    ``control``: whether a node would run control compiled, and why. ``num_cores`` counts the cores
    that this process may use; ``memory_bytes`` is ``None`` if the system does not report it.
    """

    quire: str
    python: str
    system: str
    processor: str
    cpu_features: tuple[str, ...]
    num_cores: int
    memory_bytes: int | None
    free_memory_bytes: int | None
    compiler: str | None
    control: str
    torch: TorchBuild | str
    extras: tuple[Extra, ...]


def inspect_machine() -> Machine:
    """Collect everything once. Takes as long as importing torch."""
    processor, features = _processor()
    memory_bytes, free_bytes = _memory()
    return Machine(
        quire=version("quire"),
        python=platform.python_version(),
        system=f"{platform.system()} {platform.machine()}",
        processor=processor,
        cpu_features=features,
        num_cores=num_usable_cores(),
        memory_bytes=memory_bytes,
        free_memory_bytes=free_bytes,
        compiler=_compiler(),
        control=str(form_of_nodes()),
        torch=_torch(),
        extras=_extras(),
    )


def as_json(machine: Machine) -> dict[str, Any]:
    """Return ``machine`` as JSON values, for bug reports."""
    built: dict[str, Any] = msgspec.to_builtins(machine)
    return built


def num_usable_cores() -> int:
    """Return how many cores this process may run on; a container may limit them."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def processor_name() -> str:
    """Return the processor's name, and how many of its cores may be used."""
    return f"{_processor()[0]}, {num_usable_cores()} cores"


def _processor() -> tuple[str, tuple[str, ...]]:
    """Return name and known features of the processor. Linux reports both, other systems the
    name."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return platform.processor() or platform.machine(), ()
    name = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    flags = re.search(r"^(?:flags|Features)\s*:\s*(.+)$", text, re.MULTILINE)
    present = set(flags.group(1).split()) if flags else set()
    features = tuple(feature for feature in CPU_FEATURES if feature in present)
    return (name.group(1).strip() if name else platform.machine()), features


def _memory() -> tuple[int | None, int | None]:
    """Return total and free memory in bytes, or ``None`` if the system does not report it."""
    try:
        page = os.sysconf("SC_PAGE_SIZE")
        return page * os.sysconf("SC_PHYS_PAGES"), page * os.sysconf("SC_AVPHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return None, None


def _compiler() -> str | None:
    """Return the first C++ compiler on the path, with the first line of its version output."""
    for name in COMPILERS:
        if (path := shutil.which(name)) is None:
            continue
        said = subprocess.run([path, "--version"], capture_output=True, text=True, check=False)
        return f"{name}: {said.stdout.splitlines()[0]}" if said.stdout else name
    return None


def _torch() -> TorchBuild | str:
    try:
        version("torch")
    except PackageNotFoundError:
        return "not installed: run 'make install' or 'pip install torch'"
    try:
        asked = subprocess.run(
            [sys.executable, "-c", _PROBE],
            capture_output=True,
            text=True,
            check=False,
            timeout=_PROBE_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        return f"importing it did not finish within {_PROBE_TIMEOUT_S:.0f} s"
    if asked.returncode != 0:
        said = asked.stderr.strip().splitlines()
        return f"importing it fails: {said[-1] if said else asked.returncode}"
    return msgspec.json.decode(asked.stdout.splitlines()[-1], type=TorchBuild)


def _extras() -> tuple[Extra, ...]:
    """Return the extras of the installed package, with their missing dependencies."""
    wanted: dict[str, list[str]] = {}
    for requirement in requires("quire") or []:
        package = re.match(r"[A-Za-z0-9._-]+", requirement)
        extra = re.search(r"extra\s*==\s*['\"]([\w-]+)['\"]", requirement)
        if package and extra:
            wanted.setdefault(extra.group(1), []).append(package.group(0))
    return tuple(
        Extra(name, tuple(packages), tuple(p for p in packages if not _is_installed(p)))
        for name, packages in wanted.items()
    )


def _is_installed(package: str) -> bool:
    try:
        version(package)
    except PackageNotFoundError:
        return False
    return True
