"""``quire sim``: plays programs in virtual time, through the scheduler of a node."""

from __future__ import annotations

from collections.abc import Sequence

import typer

from quire.cli.exit_codes import EXIT_FAILED, EXIT_INTERRUPTED
from quire.cli.options.groups import with_groups
from quire.cli.sim.failures import tell_failures
from quire.cli.sim.findings import as_json, show
from quire.cli.sim.options import SimOptions
from quire.cli.sim.progress import SimProgress
from quire.cli.written_files import write_target
from quire.core.interpreter import collect_seldom
from quire.core.scheduler_config import SchedulerConfig
from quire.simulation.studies import Study, StudyResult, examine


@with_groups
def sim(options: SimOptions) -> None:
    """Simulate programs in virtual time and report how long they take under each policy.

    The scheduler is that of 'quire serve'. The engines are simulated: --cost or --profile says how
    long their work takes. Lengths, arrivals and tools come from the workload. The same options give
    the same results, to the byte. The real time of the scheduler, and the progress every ten
    seconds, are printed on stderr. Ctrl-C ends the command with the results of finished policies.

    Examples:

        quire sim --workload sharegpt --programs 100 --load 0.9 --policy fcfs --policy plas

        quire sim --workload mixed --engines 4 --rate 3 --programs 300 --seed 1 -o mixed.json

        quire sim --workload lats --arrivals at-once --programs 20 --policy atlas

        quire sim --profile qwen.json --workload sharegpt --load 0.8

        quire sim --profile qwen.json --log events.log --policy fcfs --policy plas

        quire sim --nodes 2 --strategy data_parallel --strategy balanced:ratio=0.2 --programs 99
    """
    schedulers = options.schedulers()
    options.check_file()
    collect_seldom()
    if options.cluster.nodes is not None:
        _play_cluster(options, options.cluster.nodes, schedulers)
        return
    options.cluster.refuse_alone()
    _play(options, options.played.study(options.engines.spec()), schedulers)


def _play_cluster(
    options: SimOptions, num_nodes: int, schedulers: Sequence[SchedulerConfig]
) -> None:
    from quire.cli.sim.nodes import NodesAsked, play_cluster  # late: it imports routers and servers

    played, cluster = options.played, options.cluster
    measured = options.engines.measured()
    of_programs = {
        "workload": played.workload, "log": played.log, "arrivals": played.arrivals,
        "width": played.width,
    }  # fmt: skip
    cluster.refuse_beside(of_programs, options.engines.engines, [one.policy for one in schedulers])
    play_cluster(
        NodesAsked(
            num_nodes=num_nodes,
            strategies=cluster.strategy or ["least_used"],
            requests=cluster.requests,
            link=cluster.link,
            num_requests=played.num,
            rate=played.rate,
            load=played.share,
            seed=played.seed or 0,
            engine=options.engines.spec(),
            profile=options.engines.profile,
            profile_lacks=() if measured is None else measured.missing,
            scheduler=schedulers[0],
            output=options.output,
        )
    )


def _play(options: SimOptions, study: Study, schedulers: Sequence[SchedulerConfig]) -> None:
    capacity = study.capacity()
    study = study.settled()
    findings: list[StudyResult] = []
    try:
        for scheduler in schedulers:
            found = _examine(study, scheduler)
            findings.append(found)
    except KeyboardInterrupt:
        if findings:
            show(study, capacity, findings)
        raise typer.Exit(EXIT_INTERRUPTED) from None
    show(study, capacity, findings)
    if options.output is not None:
        text = as_json(study, capacity, schedulers[0], findings)
        write_target(options.output, text)
    for one in findings:
        tell_failures(one.policy, "program", one.outcomes)
    if any(one.summary.num_failed for one in findings):
        raise typer.Exit(EXIT_FAILED)


def _examine(study: Study, scheduler: SchedulerConfig) -> StudyResult:
    """Play the study under one policy."""
    progress = SimProgress(scheduler.policy, "programs")
    with progress.interrupts_told():
        found = examine(study, scheduler, progress=progress)
    progress.end(
        f"{found.summary.num_calls} calls",
        f", of which control {found.control_s:.1f} s for {found.num_messages} messages",
    )
    return found
