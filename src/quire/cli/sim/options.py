"""The options of ``quire sim``, as groups: what is played, on which engines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer

from quire.cli.console import messages
from quire.cli.options.scheduler import Balancer, LevelsOptions, PausingOptions
from quire.cli.profile.files import profile_text
from quire.cli.sim.node_options import ClusterOptions
from quire.cli.written_files import check_target
from quire.core.errors import ConfigError
from quire.core.scheduler_config import SchedulerConfig
from quire.simulation.arrivals import ARRIVALS, Arrivals
from quire.simulation.engines import IDENTICAL_STEPS, EngineSpec, costs_named
from quire.simulation.profile import EngineProfile, decode_profile
from quire.simulation.studies import SIMULATED_POLICIES, Study
from quire.simulation.workloads import WORKLOADS

_ENGINES = EngineSpec()


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedOptions:
    """Which programs are played, when they arrive, and under which policies."""

    workload: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help=f"The workload: {', '.join(WORKLOADS)} [default: mixed]."
        ),
    ] = None
    log: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Play the programs of an event log ('quire serve --record') at their recorded "
            "arrival times, instead of a workload.",
        ),
    ] = None
    policy: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help=f"{', '.join(SIMULATED_POLICIES)} [default: fcfs]. Repeat it to compare several. "
            "The last two know each program's remaining work, which no node knows: they show what "
            "a policy could gain.",
        ),
    ] = None
    programs: Annotated[int | None, typer.Option(help="Number of programs [default: 300].")] = None
    seed: Annotated[
        int | None, typer.Option(help="Seed from which the programs are drawn [default: 0].")
    ] = None
    arrivals: Annotated[
        str | None,
        typer.Option(
            metavar="KIND",
            help=f"{', '.join(ARRIVALS)}: at random times; a new one whenever one ends; all at the "
            "start [default: poisson].",
        ),
    ] = None
    rate: Annotated[
        float | None,
        typer.Option(metavar="N", help="Mean number of programs that arrive per second."),
    ] = None
    load: Annotated[
        float | None,
        typer.Option(
            metavar="SHARE",
            help="Arrival rate as a share of the estimated capacity, instead of --rate [default: "
            "0.8].",
        ),
    ] = None
    width: Annotated[
        int | None,
        typer.Option(help="Number of programs that run at a time, with --arrivals closed."),
    ] = None

    def policies(self) -> Sequence[str]:
        """Return the policies, each once.

        Raises:
            ConfigError: there is no such policy.
        """
        named = self.policy or ["fcfs"]
        unknown = [one for one in named if one not in SIMULATED_POLICIES]
        if unknown:
            raise ConfigError(
                f"no scheduling policy is called {unknown[0]!r}: choose from "
                f"{', '.join(sorted(SIMULATED_POLICIES))}"
            )
        return list(dict.fromkeys(named))

    @property
    def num(self) -> int:
        """Number of programs or requests to play, if no log determines it."""
        return 300 if self.programs is None else self.programs

    @property
    def share(self) -> float | None:
        """The load as a share of the capacity; None if it is given as a rate, or not at all.

        Raises:
            ConfigError: it is given both ways.
        """
        if self.load is not None and self.rate is not None:
            raise ConfigError(
                f"--load {self.load:g} beside --rate {self.rate:g}: leave one of them out"
            )
        is_poisson = (self.arrivals or "poisson") == "poisson"
        return 0.8 if is_poisson and self.load is None and self.rate is None else self.load

    def study(self, engines: EngineSpec) -> Study:
        """Return the study of these programs on ``engines``.

        Raises:
            ConfigError: options that exclude one another, or a log that cannot be read.
        """
        if self.log is not None:
            return self._recorded(self.log, engines)
        return Study(
            workload=self.workload or "mixed",
            num_programs=self.num,
            seed=self.seed or 0,
            engines=engines,
            arrivals=self._arrivals(),
            load=self.share,
        )

    def _recorded(self, log: Path, engines: EngineSpec) -> Study:
        from quire.cli.recorded_logs import read_load  # late: it imports the node, to play the log

        said = ("workload", "programs", "seed", "arrivals", "rate", "load", "width")
        for name in said:
            if (value := getattr(self, name)) is not None:
                raise ConfigError(
                    f"--{name} {value} beside --log {log}: the log says which programs come, and "
                    "when"
                )
        recorded = read_load(log)
        return Study(
            workload="recorded",
            num_programs=len(recorded.plans),
            seed=0,
            engines=engines,
            arrivals=self._arrivals(),
            load=None,
            recorded=recorded,
        )

    def _arrivals(self) -> Arrivals:
        kind, rate, width = self.arrivals or "poisson", self.rate, self.width
        if kind != "poisson" and rate is not None:
            raise ConfigError(f"--rate {rate:g} beside --arrivals {kind}: only poisson has a rate")
        if kind != "closed" and width is not None:
            raise ConfigError(f"--width {width} beside --arrivals {kind}: only closed has a width")
        if kind == "closed" and width is None:
            raise ConfigError("--arrivals closed: say with --width how many run at a time")
        return Arrivals(kind, 1.0 if rate is None else rate, 1 if width is None else width)


@dataclass(frozen=True, slots=True, kw_only=True)
class VirtualEngineOptions:
    """The engines in virtual time."""

    engines: Annotated[int, typer.Option(help="Number of engines that serve the model.")] = 1
    profile: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Simulate the engine that 'quire profile' measured; the options below override "
            "its values.",
        ),
    ] = None
    max_sequences: Annotated[
        int | None,
        typer.Option(
            help=f"Decodes that run at once on one engine [default: {_ENGINES.max_sequences}]."
        ),
    ] = None
    kv_tokens: Annotated[
        int | None,
        typer.Option(
            help=f"Tokens that the KV cache of one engine holds [default: {_ENGINES.kv_tokens}]."
        ),
    ] = None
    page_size: Annotated[
        int | None,
        typer.Option(
            help=f"Tokens per page of the KV cache; with larger pages long prompts are simulated "
            f"in less time [default: {_ENGINES.page_size}]."
        ),
    ] = None
    host_tokens: Annotated[
        int | None,
        typer.Option(
            help=f"Tokens of the host tier of one engine [default: {_ENGINES.host_tokens}]."
        ),
    ] = None
    disk_tokens: Annotated[
        int | None,
        typer.Option(
            help=f"Tokens of the disk tier of one engine [default: {_ENGINES.disk_tokens}]."
        ),
    ] = None
    cost: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=SECONDS",
            help="Cost of an engine's work. For decoding: message_s of a batch message, step_s of "
            "a step, row_s of each sequence in it, context_token_s of each token that a "
            "sequence attends to. For prompts: prompt_s of a message with prompt tokens, "
            "prompt_token_s of each prompt token, prompt_context_s of each token that it "
            "attends to. pass_s: the least time of a forward pass; moved_block_s, "
            "disk_block_s: of a block that is swapped. Outside the engine: gap_s of a message "
            "to an idle engine and gap_row_s of each of its rows; behind_s and behind_row_s "
            "of a message that waits behind another. Repeatable.",
        ),
    ] = None
    identical_steps: Annotated[
        bool, typer.Option(help="Each batch message takes 20 ms, whatever it contains.")
    ] = False

    def measured(self) -> EngineProfile | None:
        """Return the profile, if one is given.

        Raises:
            ConfigError: the profile cannot be read.
        """
        if self.profile is None:
            return None
        return decode_profile(profile_text(self.profile), str(self.profile))

    def spec(self) -> EngineSpec:
        """Return the specification of the engines.

        Raises:
            ConfigError: options exclude one another, the profile cannot be read, or the options
                describe no engine.
        """
        if self.identical_steps and (self.cost or self.profile is not None):
            other = "--cost" if self.cost else "--profile"
            raise ConfigError(f"{other} beside --identical-steps: leave one of them out")
        if self.page_size is not None and self.profile is not None:
            raise ConfigError(
                f"--page-size {self.page_size} beside --profile: costs were measured with its own "
                "pages, so leave one of them out"
            )
        measured = self.measured()
        if measured is not None and (advice := measured.errors.advice()):
            messages().print(f"warning: --profile {self.profile}: {advice}")
        base = _ENGINES if measured is None else measured.engines()
        given = {
            "max_sequences": self.max_sequences,
            "kv_tokens": self.kv_tokens,
            "page_size": self.page_size,
            "host_tokens": self.host_tokens,
            "disk_tokens": self.disk_tokens,
        }
        return replace(
            base,
            num_engines=self.engines,
            cost=IDENTICAL_STEPS
            if self.identical_steps
            else costs_named(self.cost or (), base.cost),
            **{name: value for name, value in given.items() if value is not None},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SimOptions:
    """All options, in the order of ``quire sim --help``."""

    played: PlayedOptions
    engines: VirtualEngineOptions
    balancer: Balancer = "quire"
    levels: LevelsOptions
    pausing: PausingOptions
    cluster: ClusterOptions
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Write settings, summaries and programs to this file as JSON.",
        ),
    ] = None

    def schedulers(self) -> list[SchedulerConfig]:
        """Return one configuration for each policy.

        Raises:
            ConfigError: there is no such policy, or the figures describe no scheduler.
        """
        policies = self.played.policies()
        levels, pausing = self.levels.config(policies), self.pausing.config()
        return [
            SchedulerConfig(policy=one, levels=levels, balancer=self.balancer, pausing=pausing)
            for one in policies
        ]

    def check_file(self) -> None:
        """Check that the file of the findings can be written.

        Raises:
            ConfigError: it cannot be written.
        """
        check_target(self.output)
