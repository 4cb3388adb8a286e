"""Finds, chooses and loads the compiled kernel: one shared library for each instruction set.

Owns the choice and its reasons, which are data (``kernel_report``) for ``quire doctor``, the log
and the tests. Does not know what the libraries compute: the modules that declare functions of the C
interface (``abi`` for ``csrc/abi.h``) pass their signatures in.
"""

from __future__ import annotations

import ctypes
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quire.core.errors import ConfigError

INSTRUCTION_SETS = ("amx", "avx512_bf16", "avx512", "avx2", "portable")
"""The instruction sets, best first. Every processor of the platform supports ``portable``."""

ABI_VERSION = 10
"""Must equal ``kAbiVersion`` of ``csrc/abi.h``. Counts changes of functions and structs."""

FOLDER = Path(__file__).parent
REBUILD = "install a C++ compiler and run 'make install', or install quire again"

Signature = tuple[Any, tuple[Any, ...]]
"""The result type of a C function and the types of its arguments, as ctypes names them."""


@dataclass(frozen=True, slots=True)
class LibraryState:
    """One instruction set. ``problem``: why its library cannot be used; ``None`` if it can."""

    isa: str
    problem: str | None


@dataclass(frozen=True, slots=True)
class KernelReport:
    """The libraries that exist. ``chosen`` is the best usable instruction set, ``None`` without
    any.

    ``compiler`` built the libraries; ``None`` if none was found or nothing was built.
    """

    chosen: str | None
    states: tuple[LibraryState, ...]
    compiler: str | None

    def fallback_reason(self) -> str:
        """One line for the log of an engine that runs without the kernel."""
        reasons = {state.problem or "" for state in self.states}
        detail = reasons.pop() if len(reasons) == 1 else self._listed()
        return f"the CPU kernel cannot be used: {detail}"

    def _listed(self) -> str:
        return "; ".join(f"{state.isa}: {state.problem}" for state in self.states if state.problem)


class KernelLibrary:
    """One loaded library. ``native`` holds its functions, typed by ``declare``."""

    def __init__(self, isa: str, path: Path, native: ctypes.CDLL) -> None:
        self.isa = isa
        self.path = path
        self.native = native

    def declare(self, signatures: Mapping[str, Signature]) -> None:
        """Set the types of functions.

        Raises:
            ConfigError: the library lacks one of them, so it was built from other sources.
        """
        for name, (result, arguments) in signatures.items():
            try:
                function = getattr(self.native, name)
            except AttributeError as exc:
                raise ConfigError(
                    f"{self.path.name} has no function {name}: it was built from other sources; "
                    + REBUILD
                ) from exc
            function.restype = result
            function.argtypes = arguments


def load_kernel(isa: str | None = None, folder: Path = FOLDER) -> KernelLibrary:
    """Load the library of ``isa``, or of the best set that this machine can run.

    Raises:
        ConfigError: there is none, or the requested one cannot be used here; with the reason.
    """
    report = kernel_report(folder)
    wanted = report.chosen if isa is None else isa
    if wanted is None:
        raise ConfigError(f"{report.fallback_reason()}. {REBUILD}, or choose the backend torch")
    if wanted not in INSTRUCTION_SETS:
        raise ConfigError(f"kernel_isa is {wanted!r}: choose one of {', '.join(INSTRUCTION_SETS)}")
    state = next(state for state in report.states if state.isa == wanted)
    if state.problem is not None:
        usable = [state.isa for state in report.states if state.problem is None]
        raise ConfigError(
            f"the CPU kernel for {wanted} cannot be used: {state.problem}; "
            f"usable here: {', '.join(usable) or 'none'}"
        )
    path = _path(wanted, folder)
    return KernelLibrary(wanted, path, ctypes.CDLL(str(path)))


def kernel_report(folder: Path = FOLDER) -> KernelReport:
    """Check every library of ``folder``: whether it exists and fits this version and this
    machine."""
    compiler, failures = _build_record(folder)
    states = []
    for isa in INSTRUCTION_SETS:
        problem = failures.get(isa) or _problem(isa, folder)
        states.append(LibraryState(isa, problem))
    chosen = next((state.isa for state in states if state.problem is None), None)
    return KernelReport(chosen, tuple(states), compiler)


def _path(isa: str, folder: Path) -> Path:
    return folder / f"_kernel_{isa}.so"


def _problem(isa: str, folder: Path) -> str | None:
    """Why the library of ``isa`` cannot be used. Calls its check before any of its vector code
    runs."""
    path = _path(isa, folder)
    if not path.exists():
        return "it was not built"
    try:
        native = ctypes.CDLL(str(path))
        version = int(native.quire_abi_version())
    except (OSError, AttributeError) as exc:
        return f"{path.name} cannot be loaded ({exc})"
    if version != ABI_VERSION:
        return f"{path.name} has interface {version}, this version of Quire needs {ABI_VERSION}"
    native.quire_unsupported_reason.restype = ctypes.c_char_p
    native.quire_unsupported_reason.argtypes = (ctypes.c_char_p,)
    reason = native.quire_unsupported_reason(isa.encode())
    return None if reason is None else str(reason.decode())


def _build_record(folder: Path) -> tuple[str | None, dict[str, str]]:
    """The compiler and the failures that ``setup.py`` recorded; empty if it never ran."""
    try:
        record = json.loads((folder / "_kernel_build.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None, {}
    return record.get("compiler"), dict(record.get("failures", {}))
