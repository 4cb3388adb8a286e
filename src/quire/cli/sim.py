"""``quire sim``: programs in virtual time, through the scheduler that a node runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import Annotated

import typer

from quire.cli.console import messages
from quire.cli.exit_codes import EXIT_FAILED
from quire.cli.profile_files import profile_text
from quire.cli.scheduler_options import (
    Balancer,
    MaxHold,
    MaxPause,
    PauseAbove,
    PolicyBeta,
    PolicyQuanta,
    PolicyThresholds,
    PolicyUnit,
    ResumeBelow,
    levels_config,
)
from quire.cli.sim_findings import as_json, show
from quire.cli.sim_node_options import (
    Links,
    Nodes,
    Requests,
    Strategies,
    refuse_beside_nodes,
    refuse_without_nodes,
)
from quire.core.errors import ConfigError
from quire.core.interpreter import collect_seldom
from quire.core.scheduler_config import PausingConfig, SchedulerConfig
from quire.simulation.arrivals import ARRIVALS, Arrivals
from quire.simulation.engines import IDENTICAL_STEPS, EngineSpec, costs_named
from quire.simulation.profile import EngineProfile, decode_profile
from quire.simulation.studies import SIMULATED_POLICIES, Finding, Study, examine
from quire.simulation.workloads import WORKLOADS
from quire.simulation.workloads.recorded import RecordedLoad

_ENGINES = EngineSpec()
_PAUSING = PausingConfig()
_SILENT_S = 5.0
"""Real seconds between two lines of progress."""


def sim(
    workload: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help=f"What is played: {', '.join(WORKLOADS)} [default: mixed]."
        ),
    ] = None,
    log: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Instead of a workload: the programs of a log that 'quire serve --record' wrote, "
            "when they came.",
        ),
    ] = None,
    policy: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help=f"Repeatable, to compare: {', '.join(SIMULATED_POLICIES)} [default: fcfs]. The "
            "last two know what no node knows and show what could be gained.",
        ),
    ] = None,
    programs: Annotated[
        int | None, typer.Option(help="How many programs are played [default: 300].")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Other seeds draw other programs [default: 0].")
    ] = None,
    arrivals: Annotated[
        str | None,
        typer.Option(
            metavar="KIND",
            help=f"{', '.join(ARRIVALS)}: independent of earlier ones; the next when one ends; all "
            "at the start [default: poisson].",
        ),
    ] = None,
    rate: Annotated[float | None, typer.Option(help="Programs a second, on average.")] = None,
    load: Annotated[
        float | None,
        typer.Option(help="Instead of a rate, a share of the estimated capacity [default: 0.8]."),
    ] = None,
    width: Annotated[
        int | None, typer.Option(help="How many run at a time, if arrivals are closed.")
    ] = None,
    engines: Annotated[int, typer.Option(help="How many engines serve the model.")] = 1,
    profile: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Engines like one that 'quire profile' has measured; the following options "
            "change it.",
        ),
    ] = None,
    max_sequences: Annotated[
        int | None,
        typer.Option(
            help=f"Decodes that run at once on one engine [default: {_ENGINES.max_sequences}]."
        ),
    ] = None,
    kv_tokens: Annotated[
        int | None,
        typer.Option(
            help=f"Tokens that the cache of one engine holds [default: {_ENGINES.kv_tokens}]."
        ),
    ] = None,
    host_tokens: Annotated[
        int | None,
        typer.Option(
            help=f"Tokens that can be swapped out of it [default: {_ENGINES.host_tokens}]."
        ),
    ] = None,
    disk_tokens: Annotated[
        int | None,
        typer.Option(
            help=f"Tokens that go on from there to a disk [default: {_ENGINES.disk_tokens}]."
        ),
    ] = None,
    cost: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=SECONDS",
            help="What engines take: message_s for a message, step_s and row_s for a step and for "
            "each sequence in it, context_token_s for each token that one attends to, "
            "prompt_s for a message with tokens of prompts, prompt_token_s for each of them and "
            "prompt_context_s for each token that one attends to, pass_s for the least that a pass "
            "takes, moved_block_s, disk_block_s; beside the engine's own time gap_s for a "
            "message to an idle engine and gap_row_s for each of its rows, behind_s and "
            "behind_row_s for one that waits behind another. Repeatable.",
        ),
    ] = None,
    identical_steps: Annotated[
        bool, typer.Option(help="Each message takes 20 ms, whatever is in it.")
    ] = False,
    balancer: Balancer = "quire",
    policy_thresholds: PolicyThresholds = None,
    policy_quanta: PolicyQuanta = None,
    policy_unit: PolicyUnit = None,
    policy_beta: PolicyBeta = None,
    pause_above: PauseAbove = _PAUSING.above,
    resume_below: ResumeBelow = _PAUSING.resume_below,
    max_pause: MaxPause = _PAUSING.max_s,
    max_hold: MaxHold = _PAUSING.max_hold_s,
    nodes: Nodes = None,
    strategy: Strategies = None,
    requests: Requests = None,
    link: Links = None,
    json_file: Annotated[
        Path | None,
        typer.Option("--json", metavar="FILE", help="Write settings, summaries and programs."),
    ] = None,
) -> None:
    """Play programs in virtual time and report how long they take under each policy.

    The scheduler is the one that 'quire serve' runs; engines are models that take the time that
    --cost says. Lengths, arrivals and tools come from the workload. The same options give the same
    results, to the byte; what control itself takes is measured and told on stderr.

    Examples:

        quire sim --workload sharegpt --programs 100 --load 0.9 --policy fcfs --policy plas

        quire sim --workload mixed --engines 4 --rate 3 --programs 300 --seed 1 --json mixed.json

        quire sim --workload lats --arrivals at-once --programs 20 --policy atlas

        quire sim --profile qwen.json --workload sharegpt --load 0.8

        quire sim --profile qwen.json --log events.log --policy fcfs --policy plas

        quire sim --nodes 2 --strategy data_parallel --strategy balanced:ratio=0.2 --programs 99
    """
    if log is not None:
        asked = {
            "workload": workload, "programs": programs, "seed": seed, "arrivals": arrivals,
            "rate": rate, "load": load, "width": width,
        }  # fmt: skip
        _refuse_beside_log(log, asked)
    kind = arrivals or "poisson"
    if identical_steps and (cost or profile is not None):
        other = "--cost" if cost else "--profile"
        raise ConfigError(f"{other} beside --identical-steps: leave one of them out")
    measured = None if profile is None else _measured(profile)
    base = _ENGINES if measured is None else measured.engines()
    given = {
        "max_sequences": max_sequences,
        "kv_tokens": kv_tokens,
        "host_tokens": host_tokens,
        "disk_tokens": disk_tokens,
    }
    spec = replace(
        base,
        num_engines=engines,
        cost=IDENTICAL_STEPS if identical_steps else costs_named(cost or (), base.cost),
        **{name: value for name, value in given.items() if value is not None},
    )
    named = policy or ["fcfs"]
    levels = levels_config(
        named,
        thresholds=policy_thresholds,
        quanta=policy_quanta,
        unit=policy_unit,
        beta=policy_beta,
    )
    pausing = PausingConfig(pause_above, resume_below, max_pause, max_hold)
    unknown = [one for one in named if one not in SIMULATED_POLICIES]
    if unknown:
        raise ConfigError(
            f"no scheduling policy is called {unknown[0]!r}: choose from "
            f"{sorted(SIMULATED_POLICIES)}"
        )
    if json_file is not None and not json_file.parent.is_dir():
        raise ConfigError(f"--json {json_file}: there is no folder {json_file.parent}")
    schedulers = [
        SchedulerConfig(policy=one, levels=levels, balancer=balancer, pausing=pausing)
        for one in dict.fromkeys(named)
    ]
    collect_seldom()
    if nodes is not None:
        from quire.cli.sim_nodes import NodesAsked, play_cluster  # late: routers, servers, nodes

        refused = {"workload": workload, "log": log, "arrivals": arrivals, "width": width}
        refuse_beside_nodes(refused, engines, named)
        play_cluster(
            NodesAsked(
                num_nodes=nodes,
                strategies=strategy or ["least_used"],
                requests=requests,
                link=link,
                num_requests=300 if programs is None else programs,
                rate=rate,
                load=_load(kind, rate, load),
                seed=seed or 0,
                engine=spec,
                profile=profile,
                profile_lacks=() if measured is None else measured.missing,
                scheduler=schedulers[0],
                json_file=json_file,
            )
        )
        return
    refuse_without_nodes({"strategy": strategy, "requests": requests, "link": link})
    recorded = None if log is None else _recorded(log)
    study = Study(
        workload=workload or ("mixed" if recorded is None else "recorded"),
        num_programs=(300 if programs is None else programs)
        if recorded is None
        else len(recorded.plans),
        seed=seed or 0,
        engines=spec,
        arrivals=_arrivals(kind, rate, width),
        load=_load(kind, rate, load) if recorded is None else None,
        recorded=recorded,
    )
    capacity = study.capacity()
    study = study.settled()
    findings = [_examine(study, one) for one in schedulers]
    show(study, capacity, findings)
    if json_file is not None:
        text = as_json(study, capacity, schedulers[0], findings)
        json_file.write_text(text, encoding="utf-8")
    if any(one.summary.num_failed for one in findings):
        raise typer.Exit(EXIT_FAILED)


def _refuse_beside_log(log: Path, asked: Mapping[str, object]) -> None:
    given = [f"--{name} {value}" for name, value in asked.items() if value is not None]
    if given:
        raise ConfigError(
            f"{given[0]} beside --log {log}: the log says which programs come, and when"
        )


def _recorded(log: Path) -> RecordedLoad:
    from quire.cli.recorded_logs import read_load  # late: it imports the node, to play the log

    return read_load(log)


def _measured(path: Path) -> EngineProfile:
    return decode_profile(profile_text(path), str(path))


def _arrivals(kind: str, rate: float | None, width: int | None) -> Arrivals:
    if kind != "poisson" and rate is not None:
        raise ConfigError(f"--rate {rate:g} beside --arrivals {kind}: only poisson has a rate")
    if kind != "closed" and width is not None:
        raise ConfigError(f"--width {width} beside --arrivals {kind}: only closed has a width")
    if kind == "closed" and width is None:
        raise ConfigError("--arrivals closed: say with --width how many run at a time")
    return Arrivals(kind, 1.0 if rate is None else rate, 1 if width is None else width)


def _load(kind: str, rate: float | None, load: float | None) -> float | None:
    if load is not None and rate is not None:
        raise ConfigError(f"--load {load:g} beside --rate {rate:g}: leave one of them out")
    return 0.8 if kind == "poisson" and load is None and rate is None else load


def _examine(study: Study, scheduler: SchedulerConfig) -> Finding:
    """Play it under one policy; on a terminal a line on stderr now and then, and one behind it."""
    console, policy = messages(), scheduler.policy
    began = told = monotonic()

    def progress(num_over: int, now_s: float) -> None:
        nonlocal told
        if monotonic() - told >= _SILENT_S:
            told = monotonic()
            console.print(f"{policy}: {num_over} of {study.num_programs} programs, {now_s:.0f} s")

    found = examine(study, scheduler, progress=progress if console.is_terminal else None)
    calls = found.summary.num_calls
    console.print(
        f"{policy}: {calls} calls in {monotonic() - began:.1f} s, of which control "
        f"{found.control_s:.1f} s for {found.num_messages} messages"
    )
    return found
