"""``quire status`` and ``down``, and what they have in common with ``up``: a cluster of nodes and
routers that one file describes.

Must not import the commands that a cluster runs: their options are read by ``up`` alone."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.live import Live
from rich.table import Table

from quire.cli.console import escaped, messages, output, table
from quire.cli.exit_codes import EXIT_FAILED
from quire.cluster.deployment.deployment import Deployment
from quire.cluster.deployment.plan import Wave
from quire.cluster.deployment.process import ProcessState
from quire.cluster.deployment.reading import UNREAD, Commands, read_cluster
from quire.cluster.deployment.report import ClusterReport
from quire.cluster.deployment.spec import ClusterSpec
from quire.core.errors import InvalidArgument

_WATCH_S = 2.0
_WIDTH = 160

File = Annotated[Path, typer.Argument(help="The file that describes the cluster.")]
StateDir = Annotated[
    Path | None,
    typer.Option(
        envvar="QUIRE_STATE_DIR",
        show_default="~/.local/state/quire",
        help="Directory of the clusters' keys, logs and process records.",
    ),
]


class RolloutLines:
    """Prints each step and each change as a line. Implements ``DeploymentWatcher``."""

    def ray(self, words: str) -> None:
        messages().print(escaped(words))

    def planned(self, wave: Wave) -> None:
        for line in lines_of(wave):
            messages().print(line)

    def changed(self, state: ProcessState) -> None:
        if state.phase == "unknown":
            messages().print(escaped(f"  {state.name} is placed; its keeper does not answer yet"))
            return
        where = f" (pid {state.pid}, {state.url})" if state.pid is not None else ""
        detail = f": {state.detail}" if state.detail else ""
        messages().print(escaped(f"  {state.name} {state.phase}{where}{detail}"))


def status(
    file: File = Path("cluster.yaml"),
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Refresh the table until Ctrl-C.")
    ] = False,
    state_dir: StateDir = None,
) -> None:
    """Show the processes of a cluster: machine, start time, number of restarts, and how busy the
    nodes are.

    Ends with status 1 unless every process is ready and has its keeper.

    Examples:

        quire status cluster.yaml

        quire status cluster.yaml --watch

        quire status cluster.yaml --json
    """
    if watch and as_json:
        raise InvalidArgument("--watch shows a table: leave out --json")
    _, deployment = deployment_of(file, state_dir)
    if watch:
        with Live(console=output(), auto_refresh=False) as shown_again:
            while True:
                shown_again.update(_table(deployment.status(), time.time()), refresh=True)
                time.sleep(_WATCH_S)
    report = deployment.status()
    if as_json:
        output(_WIDTH).print(escaped(json.dumps(report.document(), indent=2)))
    else:
        output(_WIDTH).print(_table(report, time.time()))
        output().print(escaped(f"Ray {report.ray}"))
        for line in _scaling_lines(report, time.time()):
            output().print(escaped(line))
    if not report.is_whole:
        raise typer.Exit(EXIT_FAILED)


def down(file: File = Path("cluster.yaml"), state_dir: StateDir = None) -> None:
    """End a cluster: drain and end its processes, routers first, then its Ray; remove its files.

    Also ends processes of the cluster that have lost their keeper. Ends nothing else.

    Examples:

        quire down cluster.yaml
    """
    cluster, deployment = deployment_of(file, state_dir)
    unkept = deployment.down(RolloutLines())
    for name in unkept:
        messages().print(f"{name} ended, which nothing had kept")
    output().print(f"{cluster.name} is down")


def deployment_of(
    file: Path, state_dir: Path | None, commands: Commands = UNREAD
) -> tuple[ClusterSpec, Deployment]:
    """Return the cluster of the file and its deployment. ``commands``: whose options are read."""
    cluster = read_cluster(file, commands)
    base = state_dir or Path.home() / ".local" / "state" / "quire"
    return cluster, Deployment(cluster, base.absolute() / cluster.name, os.environ)


def lines_of(wave: Wave) -> list[str]:
    return [escaped(f"{step.action} {step.name}: {step.reason}") for step in wave]


def _table(report: ClusterReport, now_unix_s: float) -> Table:
    columns = (
        "process",
        "state",
        "machine",
        "pid",
        "url",
        "since",
        "restarts",
        "running",
        "waiting",
    )
    shown = table(
        *columns, "detail", right=("pid", "restarts", "running", "waiting"), wrap=("detail",)
    )
    for state in report.processes:
        load = report.loads.get(state.name)
        since = "" if state.since_unix_s is None else _span(now_unix_s - state.since_unix_s)
        figures = ("", "") if load is None else (str(load.num_running), str(load.num_waiting))
        pid = "" if state.pid is None else str(state.pid)
        row = (state.name, state.phase, state.machine, pid, state.url, since, str(state.restarts))
        shown.add_row(*row, *figures, escaped(_detail(state)))
    return shown


def _detail(state: ProcessState) -> str:
    """The detail of a process, with its last words if it has ended unasked."""
    has_ended = state.pid is None and state.detail and state.phase != "unknown"
    if not has_ended or not state.said:
        return state.detail
    return f"{state.detail}; it last said: {state.said[-1]}"


def _scaling_lines(report: ClusterReport, now_unix_s: float) -> list[str]:
    scaling = report.scaling
    if scaling is None:
        return []
    lines = []
    for group in scaling.groups:
        asked = "no router tells" if group.num_requests is None else str(group.num_requests)
        lines.append(
            f"{group.group} has {group.count} of {group.least} to {group.most} nodes; "
            f"requests without an answer: {asked}"
        )
    if scaling.last_unix_s is not None:
        lines.append(f"last scaled {_span(now_unix_s - scaling.last_unix_s)} ago: {scaling.last}")
    return lines


def _span(seconds: float) -> str:
    for unit, length in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"
