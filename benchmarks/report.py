"""Writes the output of a benchmark: a table for people on stderr, one JSON line for machines on
stdout.

Owns the description of the machine and of the commit, and the folder for figures.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parent.parent
_INSTRUCTION_SETS = ("amx_bf16", "avx512_bf16", "avx512f", "avx2")
_BF16_FLAGS = frozenset({"amx_bf16", "avx512_bf16", "bf16"})
"""Flags of processors that multiply bf16; the last is Arm's name."""


def processor() -> str:
    """Return the processor's name as reported by the system."""
    fields = _cpuinfo()
    if not fields:
        return platform.processor() or platform.machine()
    flags = processor_flags()
    isa = next((name for name in _INSTRUCTION_SETS if name in flags), platform.machine())
    return f"{fields.get('model name', platform.machine())} ({isa})"


def processor_flags() -> frozenset[str]:
    """Return the processor's features as the system names them; none where it does not list
    them."""
    fields = _cpuinfo()
    return frozenset(fields.get("flags", fields.get("Features", "")).split())


def multiplies_bf16() -> bool:
    """Return whether the processor has instructions for bf16; without them bf16 is widened to
    float32."""
    return bool(processor_flags() & _BF16_FLAGS)


def _cpuinfo() -> dict[str, str]:
    """The fields of the first processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return {}
    fields = dict(line.split(":", 1) for line in reversed(lines) if ":" in line)
    return {name.strip(): value.strip() for name, value in fields.items()}


def commit() -> str:
    """Return the checkout's commit, with a plus if files of the package or of the benchmarks are
    modified."""
    try:
        head = _git("rev-parse", "--short", "HEAD")
        return head + ("+" if _git("status", "--porcelain", "--", "src", "benchmarks") else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def machine() -> dict[str, Any]:
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    return {
        "processor": processor(),
        "num_cores": len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count(),
        "load_average_1min": None if load is None else round(load, 1),
    }


def control_form() -> str:
    """Return ``compiled`` or ``interpreted``: the form of control in this process, or in the
    servers that it starts."""
    # here, because a peer's environment imports this module without Quire
    from quire.cli.compiled_control import form_of_nodes
    from quire.compilation import in_use

    here = in_use()
    is_compiled = form_of_nodes().is_compiled if here is None else here
    return "compiled" if is_compiled else "interpreted"


def print_table(title: str, rows: Sequence[Mapping[str, object]]) -> None:
    """Print a table, as Markdown and whole if it does not go to a terminal. ``rows`` have the same
    keys, which are the headings. Of a rounded figure the median is shown."""
    console = Console(stderr=True)
    table = Table(title=title) if console.is_terminal else Table(title=title, box=box.MARKDOWN)
    for name in rows[0] if rows else ():
        table.add_column(name, justify="right" if name != "model" else "left", overflow="fold")
    for row in rows:
        table.add_row(*map(_shown, row.values()))
    if not console.is_terminal:
        wide = Console(width=1 << 16)
        console.width = max(80, wide.measure(table).maximum)
    console.print(table)


def _shown(value: object) -> str:
    return str(value["median"] if isinstance(value, dict) and "median" in value else value)


def emit(benchmark: str, out: Path | None, **fields: Any) -> None:
    """Print the JSON line; with ``out`` also write it as ``NAME.json`` in that folder."""
    line = json.dumps(
        {
            "benchmark": benchmark,
            **machine(),
            "commit": commit(),
            "control": control_form(),
            **fields,
        }
    )
    print(line)
    sys.stdout.flush()
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        path = out / f"{benchmark.replace('/', '-')}.json"
        path.write_text(json.dumps(json.loads(line), indent=1) + "\n", encoding="utf-8")
