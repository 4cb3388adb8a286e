"""``quire doctor``: reports this machine, the backends that will be used, and what to install for
more.

Owns the report; ``machine`` collects the values.
"""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from shutil import which
from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from quire.cli.console import output, table
from quire.cli.exit_codes import EXIT_FAILED
from quire.cli.machine import Extra, Machine, TorchBuild, as_json, inspect_machine
from quire.core.errors import ModelNotFound
from quire.core.sizes import format_size
from quire.node import SHIPPED_MODEL, resolve_source

PURPOSES = {
    "cuda": "attention on CUDA devices: FlashInfer and Triton",
    "sandbox": "untrusted programs, as WebAssembly guests",
    "compile": "the control core as machine code, by 'quire compile'",
    "otel": "spans to an OpenTelemetry collector (quire serve --otlp-endpoint)",
    "workflows": "HTML and PDF documents of workflows, vectors in LanceDB",
    "postgres": "vectors in PostgreSQL with pgvector",
    "nixl": "K and V to other engines by RDMA and what else UCX finds (--kv-transport nixl)",
    "ray": "clusters of several nodes and routers (quire up)",
    "bench": "drawing the figures of benchmarks",
    "dev": "the tests and checks of this repository",
}


_NUM_NAMED = 4
"""How many missing packages of an extra are named."""


def doctor(
    as_json_: Annotated[
        bool, typer.Option("--json", help="Print one JSON object, for bug reports.")
    ] = False,
) -> None:
    """Report what this machine has, what Quire uses of it, and which optional packages are
    missing.

    Ends with status 1 if something that every engine needs is missing.

    Examples:

        quire doctor

        quire doctor --json > machine.json
    """
    machine = inspect_machine()
    failures = problems(machine)
    if as_json_:
        document = {**as_json(machine), "problems": failures}
        typer.echo(json.dumps(document, indent=2))
    else:
        output().print(report(machine, failures))
    if failures:
        raise typer.Exit(EXIT_FAILED)


def problems(machine: Machine) -> list[str]:
    """Return the problems that prevent serving, each with its remedy; empty if there are none."""
    found = []
    if isinstance(machine.torch, str):
        found.append(f"torch: {machine.torch}")
    try:
        resolve_source(SHIPPED_MODEL)
    except ModelNotFound as exc:
        found.append(exc.message)
    return found


def report(machine: Machine, failures: list[str]) -> RenderableType:
    """Return the whole report as one renderable."""
    verdict = (
        Text("\n".join(f"missing: {failure}" for failure in failures), style="bold red")
        if failures
        else Text("ready: try 'quire demo' or 'quire serve'", style="bold green")
    )
    return Group(
        Text(f"Quire {machine.quire} on this machine", style="bold"),
        _facts(machine),
        Text("Optional packages", style="bold"),
        _extras(machine.extras),
        *_remedy(machine.extras),
        verdict,
    )


def _remedy(extras: tuple[Extra, ...]) -> list[Text]:
    lacking = next((extra.name for extra in extras if extra.missing), None)
    return [] if lacking is None else [Text(f"to install one: {_pip()} install 'quire[{lacking}]'")]


def _facts(machine: Machine) -> Table:
    facts = table("what", "found", wrap=("found",))
    facts.show_header = False
    memory = "unknown" if machine.memory_bytes is None else format_size(machine.memory_bytes)
    if machine.free_memory_bytes is not None:
        memory += f", {format_size(machine.free_memory_bytes)} free"
    facts.add_row("python", f"{machine.python}, {machine.system}")
    facts.add_row("processor", f"{machine.processor}, {machine.num_cores} usable cores")
    facts.add_row("features", " ".join(machine.cpu_features) or "unknown")
    facts.add_row("memory", memory)
    facts.add_row("compiler", f"{machine.compiler or 'none found'}")
    facts.add_row("control", machine.control)
    for name, found in _engine_facts(machine.torch):
        facts.add_row(name, found)
    return facts


def _engine_facts(torch: TorchBuild | str) -> list[tuple[str, str]]:
    """Return torch and the backends that an engine chooses with ``--device auto``."""
    if isinstance(torch, str):
        return [("torch", torch)]
    cuda = f"CUDA {torch.cuda_version}" if torch.cuda_version else "no CUDA in this build"
    return [
        ("torch", f"{torch.version}, {torch.cpu_capability} kernels, {cuda}"),
        ("devices", ", ".join([*torch.devices, "cpu"])),
        ("sampling", "\n".join([", ".join(torch.processors), *_refused(torch)])),
        ("CPU kernel", _kernel(torch)),
    ]


def _kernel(torch: TorchBuild) -> str:
    """Return which kernel library engines will use, and why no faster one."""
    problems = [f"{isa}: {problem}" for isa, problem in torch.kernel_problems.items()]
    if torch.kernel_isa is None:
        return "\n".join(["none: engines fall back to PyTorch, several times slower", *problems])
    chosen = f"{torch.kernel_isa}, up to {torch.kernel_threads} threads (small models fewer)"
    return "\n".join([chosen, *problems])


def _refused(torch: TorchBuild) -> list[str]:
    return [f"{name} is refused: {why}" for name, why in torch.refused_processors.items()]


def _extras(extras: tuple[Extra, ...]) -> Table:
    listed = table("extra", "for", "state", wrap=("for", "state"))
    for extra in extras:
        named = extra.missing[:_NUM_NAMED]
        more = len(extra.missing) - len(named)
        missing = ", ".join(named) + (f" and {more} more" if more else "")
        state = f"missing {missing}" if missing else "installed"
        listed.add_row(extra.name, PURPOSES.get(extra.name, ""), Text(state))
    return listed


def _pip() -> str:
    """Return how a shell calls the pip of this environment, which need not be the one on its
    path."""
    found, folder = which("pip"), Path(sys.executable).parent
    if found is not None and Path(found).parent == folder:
        return "pip"
    python = Path(sys.executable)
    shown = python.relative_to(Path.cwd()) if python.is_relative_to(Path.cwd()) else python
    return f"{shlex.quote(str(shown))} -m pip"
