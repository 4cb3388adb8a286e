"""``quire up``, ``status``, ``down``: a cluster of nodes and routers that one file describes."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.live import Live
from rich.table import Table

from quire.cli.cluster_options import cluster_commands
from quire.cli.console import escaped, messages, output, table
from quire.cli.exit_codes import EXIT_FAILED
from quire.cluster.deployment.deployment import Deployment
from quire.cluster.deployment.plan import Wave
from quire.cluster.deployment.process import ProcessState
from quire.cluster.deployment.reading import read_cluster
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


class _Progress:
    """Prints each step and each change as a line. Implements ``DeploymentWatcher``."""

    def ray(self, words: str) -> None:
        messages().print(escaped(words))

    def planned(self, wave: Wave) -> None:
        for line in _lines(wave):
            messages().print(line)

    def changed(self, state: ProcessState) -> None:
        if state.phase == "unknown":
            messages().print(escaped(f"  {state.name} is placed; its keeper does not answer yet"))
            return
        where = f" (pid {state.pid}, {state.url})" if state.pid is not None else ""
        detail = f": {state.detail}" if state.detail else ""
        messages().print(escaped(f"  {state.name} {state.phase}{where}{detail}"))


def up(
    file: File = Path("cluster.yaml"),
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the steps without running them.")
    ] = False,
    state_dir: StateDir = None,
) -> None:
    """Start the cluster that a file describes, or change a running one after an edit of the file.

    Nodes are replaced one at a time: each is drained, and the next one waits until the new node is
    ready. Routers get new nodes before old ones end. Without a change in the file the command does
    nothing. After a loss of Ray it starts Ray again and finds the processes that still run.

    Needs the extra 'ray': pip install 'quire[ray]'.

    Examples:

        quire up examples/cluster/local.yaml

        quire up cluster.yaml --dry-run
    """
    cluster, deployment = _deployment(file, state_dir)
    if dry_run:
        waves = deployment.plan()
        for number, wave in enumerate(waves, start=1):
            for line in _lines(wave):
                output().print(f"{number}. {line}")
        if not waves:
            output().print(f"{cluster.name} is as {file} says")
        return
    report = deployment.up(_Progress())
    for state in report.processes:
        if state.kind == "router":
            url = state.url
            output().print(f"{cluster.name} serves on {url} (OpenAI clients: base_url={url}/v1)")
    place = "" if state_dir is None else f" --state-dir {state_dir}"
    for line in (
        f"'quire status {file}{place}' shows it, 'quire down {file}{place}' ends it",
        f"the key for /router (to change strategy and nodes) is in {deployment.admin_key_file}",
    ):
        output().print(escaped(line), soft_wrap=True)


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
    _, deployment = _deployment(file, state_dir)
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
    cluster, deployment = _deployment(file, state_dir)
    unkept = deployment.down(_Progress())
    for name in unkept:
        messages().print(f"{name} ended, which nothing had kept")
    output().print(f"{cluster.name} is down")


def _deployment(file: Path, state_dir: Path | None) -> tuple[ClusterSpec, Deployment]:
    cluster = read_cluster(file, cluster_commands())
    base = state_dir or Path.home() / ".local" / "state" / "quire"
    return cluster, Deployment(cluster, base.absolute() / cluster.name, os.environ)


def _lines(wave: Wave) -> list[str]:
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
        shown.add_row(*row, *figures, escaped(state.detail))
    return shown


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
