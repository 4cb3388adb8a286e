"""``quire up``: starts a cluster that one file describes, or changes it to what the file says."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from quire.cli.cluster import File, RolloutLines, StateDir, deployment_of, lines_of
from quire.cli.cluster_options import cluster_commands
from quire.cli.cluster_strategy import check_strategy
from quire.cli.console import escaped, output


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
    cluster, deployment = deployment_of(file, state_dir, cluster_commands())
    check_strategy(cluster)
    if dry_run:
        waves = deployment.plan()
        for number, wave in enumerate(waves, start=1):
            for line in lines_of(wave):
                output().print(f"{number}. {line}")
        if not waves:
            output().print(f"{cluster.name} is as {file} says")
        return
    report = deployment.up(RolloutLines())
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
