"""``quire replay``: runs a recorded event log through a fresh controller."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from quire.cli.console import counted, output
from quire.cli.exit_codes import EXIT_FAILED
from quire.cli.recorded_logs import replayed


def replay(
    file: Annotated[Path, typer.Argument(help="An event log written by 'quire serve --record'.")],
) -> None:
    """Replay an event log and report where this release decides differently.

    Needs neither the model nor the clients: the log contains the controller's input. Ends with
    status 1 at the first event whose actions differ. A log contains the prompts, so it is as
    confidential as they are.

    Examples:

        quire serve --record events.log

        quire replay events.log
    """
    report = replayed(file)
    console = output()
    console.print(
        f"{report.num_events} events, {report.num_actions} actions; "
        f"recorded by quire {report.recorded_by}, replayed by {report.replayed_by}"
    )
    if report.num_cut_bytes:
        console.print(
            f"the log is cut off: its last {counted(report.num_cut_bytes, 'byte')} are a message "
            "that was not written to its end, and is left out"
        )
    if report.divergence is None:
        console.print("the same actions throughout")
        return
    found = report.divergence
    console.print(f"differs at event {found.index}, time {found.time_s:.6f} s", style="red")
    console.print(f"  event    {found.event}")
    console.print(f"  actions  {found.actions}")
    raise typer.Exit(EXIT_FAILED)
