"""``quire sim --nodes``: plays requests to a cluster in virtual time, under each strategy."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import msgspec
import typer

from quire.cli.console import counted, messages, output, table
from quire.cli.exit_codes import EXIT_FAILED, EXIT_INTERRUPTED
from quire.cli.options.router import strategy_options
from quire.cli.sim.failures import tell_failures
from quire.cli.sim.progress import SimProgress
from quire.cli.written_files import write_target
from quire.cluster.routing.strategy import StrategySource, read_source
from quire.cluster.simulation import (
    ClusterFinding,
    ClusterStudy,
    ClusterSummary,
    Lengths,
    RequestLoad,
    examine_cluster,
)
from quire.core.errors import ConfigError
from quire.core.scheduler_config import SchedulerConfig
from quire.simulation.engines import EngineSpec
from quire.simulation.exchange import LinkCost
from quire.simulation.outcomes import plain

_REQUESTS: dict[str, Any] = {
    "prompt": 200, "answer": 260, "spread": 1.0, "shape": "lognormal", "prefixes": 0, "prefix": 0,
    "zipf": 1.0,
}  # fmt: skip
_SPREADS = {"normal": 0.0, "lognormal": 1.0}
_LINK = {"bytes_per_s": 1e10, "layer_s": 0.0, "way_s": 0.0, "call_s": 0.001}
_SHAPE = ("num_layers", "token_bytes")


@dataclass(frozen=True, slots=True)
class NodesAsked:
    """The values of ``quire sim --nodes``. ``load``: a share of the capacity, instead of ``rate``;
    ``profile_lacks``: the figures of K and V that ``profile``, which describes ``engine``,
    lacks."""

    num_nodes: int
    strategies: Sequence[str]
    requests: str | None
    link: str | None
    num_requests: int
    rate: float | None
    load: float | None
    seed: int
    engine: EngineSpec
    profile: Path | None
    profile_lacks: Sequence[str]
    scheduler: SchedulerConfig
    output: Path | None

    def study(self) -> ClusterStudy:
        """Return the study that the options describe.

        Raises:
            ConfigError: the options describe no cluster.
        """
        link = self._link()
        study = ClusterStudy(
            load=self._requests(self.rate or 1.0),
            num_nodes=self.num_nodes,
            engine=replace(
                self.engine, num_layers=link["num_layers"], token_bytes=link["token_bytes"]
            ),
            scheduler=self.scheduler,
            link=LinkCost(**{part.name: link[part.name] for part in fields(LinkCost)}),
            call_s=link["call_s"],
        )
        if self.rate is not None:
            return study
        share = 0.8 if self.load is None else self.load
        return replace(study, load=replace(study.load, rate=share * study.capacity()))

    def _link(self) -> dict[str, Any]:
        shape = {name: getattr(self.engine, name) for name in _SHAPE}
        return _named("--link", self.link, {**_LINK, **shape})

    def assumed(self) -> list[str]:
        """Return the figures of K and V that neither the profile nor --link gives, with the values
        used instead."""
        said = {part.partition("=")[0] for part in (self.link or "").split(",")}
        return [
            f"{name}={getattr(self.engine, name)}"
            for name in self.profile_lacks
            if name not in said
        ]

    def _requests(self, rate: float) -> RequestLoad:
        given = _named("--requests", self.requests, _REQUESTS)
        spread, shape = given["spread"], given["shape"]
        if "spread" not in (self.requests or ""):
            spread = _SPREADS.get(shape, 0.0)
        return RequestLoad(
            num_requests=self.num_requests,
            rate=rate,
            prompts=Lengths(given["prompt"], spread, shape),
            answers=Lengths(given["answer"], spread, shape),
            num_prefixes=given["prefixes"],
            prefix_tokens=given["prefix"],
            zipf=given["zipf"],
            seed=self.seed,
        )


def play_cluster(asked: NodesAsked) -> None:
    """Play the requests under each strategy, and show the outcome.

    Raises:
        ConfigError, InvalidArgument: an option or a strategy is invalid.
        typer.Exit: a request has failed.
    """
    sources = [_source(text) for text in dict.fromkeys(asked.strategies)]
    study = asked.study()
    if assumed := asked.assumed():
        messages().print(
            f"{asked.profile} does not say {' and '.join(asked.profile_lacks)}, because an older "
            f"'quire profile' has written it: {', '.join(assumed)} is assumed. Measure again, or "
            f"say it with --link {','.join(assumed)}",
            markup=False,
        )
    findings: list[ClusterFinding] = []
    try:
        for source in sources:
            found = _examine(study, source)
            findings.append(found)
    except KeyboardInterrupt:
        if findings:
            _show(study, findings)
        raise typer.Exit(EXIT_INTERRUPTED) from None
    _show(study, findings)
    if asked.output is not None:
        write_target(asked.output, _as_json(study, findings))
    for one in findings:
        tell_failures(_label(one.strategy), "request", one.outcomes)
    if any(one.summary.num_failed for one in findings):
        raise typer.Exit(EXIT_FAILED)


def _source(text: str) -> StrategySource:
    name, _, options = text.partition(":")
    if name.endswith(".py"):
        own, _, options = options.partition(":")
        name = f"{name}:{own}" if own else name
    return read_source(name, strategy_options(options.split(",") if options else ()))


def _named(option: str, text: str | None, defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``defaults`` with the values of ``text``, each of the type of its default."""
    found = dict(defaults)
    for part in text.split(",") if text else ():
        name, _, value = part.partition("=")
        if name not in defaults:
            raise ConfigError(f"{option} {part!r}: choose from {', '.join(defaults)}")
        kind = type(defaults[name])
        try:
            found[name] = value if kind is str else msgspec.convert(value, kind, strict=False)
        except msgspec.ValidationError as exc:
            shown = f"{name}={defaults[name]}"
            raise ConfigError(f"{option} {part!r}: write it as {shown}: {exc}") from exc
    return found


def _examine(study: ClusterStudy, source: StrategySource) -> ClusterFinding:
    progress = SimProgress(_label(source), "requests")
    with progress.interrupts_told():
        found = examine_cluster(study, source, progress=progress)
    progress.end(f"{study.load.num_requests} requests")
    return found


_COLUMNS = (
    "strategy", "failed", "TTFT s", "p99", "TPOT ms", "p99", "JCT s", "p99", "most at one",
    "cached", "sent GB",
)  # fmt: skip


def _show(study: ClusterStudy, findings: Sequence[ClusterFinding]) -> None:
    load, capacity = study.load, study.capacity()
    rows = table(*_COLUMNS, right=_COLUMNS[1:])
    for one in findings:
        rows.add_row(_label(one.strategy), *_row(one.summary))
    console = output(130)
    console.print(
        f"{counted(load.num_requests, 'request')}, {load.rate:.4g} a second, "
        f"{load.rate / capacity:.2f} of the capacity; {counted(study.num_nodes, 'node')}, "
        f"seed {load.seed}; estimated capacity {capacity:.4g} requests/s"
    )
    console.print(rows)
    console.print(
        "mean and p99 of the times to the first token, per further token and to the end; most at "
        "one: the share of the requests that one node answered; cached: of the prompts' tokens"
    )


def _row(summary: ClusterSummary) -> tuple[str, ...]:
    num_prompt = summary.num_prefilled_tokens + summary.num_cached_tokens
    return (
        str(summary.num_failed),
        f"{summary.ttft_s.mean:.3f}",
        f"{summary.ttft_s.p99:.3f}",
        f"{1000 * summary.tpot_s.mean:.2f}",
        f"{1000 * summary.tpot_s.p99:.2f}",
        f"{summary.jct_s.mean:.3f}",
        f"{summary.jct_s.p99:.3f}",
        f"{summary.most_share:.2f}",
        f"{summary.num_cached_tokens / max(1, num_prompt):.2f}",
        f"{summary.num_sent_bytes / 1e9:.1f}",
    )


def _label(source: StrategySource) -> str:
    options = ",".join(f"{name}={value}" for name, value in source.options.items())
    return f"{source.label}:{options}" if options else source.label


def _as_json(study: ClusterStudy, findings: Sequence[ClusterFinding]) -> str:
    document = {
        "study": asdict(study),
        "capacity": study.capacity(),
        "strategies": [
            {
                "strategy": _label(one.strategy),
                "summary": asdict(one.summary),
                "requests": [asdict(outcome) for outcome in one.outcomes],
            }
            for one in findings
        ],
    }
    return json.dumps(plain(document), indent=1) + "\n"
