"""The options of ``quire serve`` about scheduling; see ``quire.cli.options.shared``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite, nan
from typing import Annotated, Literal

import typer

from quire.core.errors import ConfigError
from quire.core.scheduler_config import LevelsConfig, PausingConfig, SchedulerConfig

PolicyOption = Literal[
    "fcfs",
    "program_fcfs",
    "round_robin",
    "mlfq",
    "plas",
    "atlas",
    "quire",
    "topology",
    "critical_path",
    "invocation",
]
BalancerOption = Literal["round_robin", "least_used", "autellix", "occupied_kv", "quire"]
PriorityScopeOption = Literal["tenant", "node"]
UnitOption = Literal["tokens", "seconds"]
WITH_LEVELS = ("mlfq", "plas", "atlas")

_DEFAULTS = LevelsConfig()
_PAUSING = PausingConfig()
_PANEL = "Scheduler"

Policy = Annotated[
    PolicyOption,
    typer.Option(
        envvar="QUIRE_POLICY",
        help="Order in which a tenant's calls run. fcfs, program_fcfs: by arrival of the call "
        "or of its program; round_robin: in turn; mlfq, plas, atlas: first the one with "
        "the least attained service, counted for the call, its program or its program's "
        "critical path; quire: by remaining work, as learned from programs of the same "
        "kind. For workflows: topology (by depth in the graph), critical_path (by "
        "remaining time), invocation (the requests of one step together).",
        rich_help_panel=_PANEL,
    ),
]
PolicyThresholds = Annotated[
    str | None,
    typer.Option(
        envvar="QUIRE_POLICY_THRESHOLDS",
        metavar="N,N,...",
        help="mlfq, plas, atlas: attained service from which a call is in the 2nd, 3rd, ... queue "
        f"[default: {','.join(f'{one:g}' for one in _DEFAULTS.thresholds)}].",
        rich_help_panel=_PANEL,
    ),
]
PolicyQuanta = Annotated[
    str | None,
    typer.Option(
        envvar="QUIRE_POLICY_QUANTA",
        metavar="N,N,...",
        help="mlfq, plas, atlas: service that a call may receive in each queue but the last before "
        "it moves to the next [default: the queues' widths].",
        rich_help_panel=_PANEL,
    ),
]
PolicyUnit = Annotated[
    UnitOption | None,
    typer.Option(
        envvar="QUIRE_POLICY_UNIT",
        help=f"mlfq, plas, atlas: unit of thresholds and quanta [default: {_DEFAULTS.unit}].",
        rich_help_panel=_PANEL,
    ),
]
PolicyBeta = Annotated[
    str | None,
    typer.Option(
        envvar="QUIRE_POLICY_BETA",
        metavar="RATIO",
        help="mlfq, plas, atlas, quire: a call moves to the first queue when its program has "
        "waited this many times as long as it was served; never: it does not [default: "
        f"{_DEFAULTS.beta:g}].",
        rich_help_panel=_PANEL,
    ),
]
Replicas = Annotated[
    list[str] | None,
    typer.Option(
        envvar="QUIRE_REPLICAS",
        metavar="[MODEL=]N",
        help="Number of engines of each model, or of the model MODEL. They share its calls; "
        "each has its own weights and KV cache. Repeatable [default: 1].",
        rich_help_panel=_PANEL,
    ),
]
Balancer = Annotated[
    BalancerOption,
    typer.Option(
        envvar="QUIRE_BALANCER",
        help="How an engine of the model is chosen. round_robin: in turn; least_used: the "
        "fewest unfinished calls; autellix: the program's own engine for long prompts, "
        "else least_used; occupied_kv: the least occupied KV cache; quire: weighs cached "
        "prompts against waiting work.",
        rich_help_panel=_PANEL,
    ),
]
PriorityScope = Annotated[
    PriorityScopeOption,
    typer.Option(
        envvar="QUIRE_PRIORITY_SCOPE",
        help="tenant: priorities order the work of one tenant; node: they take precedence over "
        "the shares of tenants.",
        rich_help_panel=_PANEL,
    ),
]
PauseAbove = Annotated[
    float,
    typer.Option(
        envvar="QUIRE_PAUSE_ABOVE",
        metavar="SHARE",
        help="A program is paused between two calls while the working sets of the other "
        "programs take more than this share of KV memory; 0: never.",
        rich_help_panel=_PANEL,
    ),
]
ResumeBelow = Annotated[
    float,
    typer.Option(
        envvar="QUIRE_RESUME_BELOW",
        metavar="SHARE",
        help="A paused program goes on when its working set fits below this share of KV memory.",
        rich_help_panel=_PANEL,
    ),
]
MaxPause = Annotated[
    float,
    typer.Option(
        envvar="QUIRE_MAX_PAUSE",
        metavar="SECONDS",
        help="Longest pause. A program that reaches it goes on in place of programs that ran "
        "without a pause for as long.",
        rich_help_panel=_PANEL,
    ),
]
MaxHold = Annotated[
    float,
    typer.Option(
        envvar="QUIRE_MAX_HOLD",
        metavar="SECONDS",
        help="Longest time for which memory is kept for a program that waits for a tool or a "
        "person while other programs are paused; 0: no time.",
        rich_help_panel=_PANEL,
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelsOptions:
    """The queues of the policies that have queues."""

    policy_thresholds: PolicyThresholds = None
    policy_quanta: PolicyQuanta = None
    policy_unit: PolicyUnit = None
    policy_beta: PolicyBeta = None

    def config(self, policies: Sequence[str]) -> LevelsConfig:
        """Return the queues for those of ``policies`` that have queues.

        Raises:
            ConfigError: a list cannot be read, the figures describe no queues, or none of the
                policies has queues.
        """
        queues = {
            "--policy-thresholds": self.policy_thresholds,
            "--policy-quanta": self.policy_quanta,
            "--policy-unit": self.policy_unit,
        }
        _require(policies, WITH_LEVELS, queues)
        _require(policies, (*WITH_LEVELS, "quire"), {"--policy-beta": self.policy_beta})
        return LevelsConfig(
            thresholds=_numbers("--policy-thresholds", self.policy_thresholds)
            or _DEFAULTS.thresholds,
            quanta=_numbers("--policy-quanta", self.policy_quanta),
            unit=self.policy_unit or _DEFAULTS.unit,
            beta=_beta(self.policy_beta),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SharingOptions:
    """How engines and tenants share the work."""

    replicas: Replicas = None
    balancer: Balancer = "quire"
    priority_scope: PriorityScope = "tenant"


@dataclass(frozen=True, slots=True, kw_only=True)
class PausingOptions:
    """When programs are paused for lack of memory."""

    pause_above: PauseAbove = _PAUSING.above
    resume_below: ResumeBelow = _PAUSING.resume_below
    max_pause: MaxPause = _PAUSING.max_s
    max_hold: MaxHold = _PAUSING.max_hold_s

    def config(self) -> PausingConfig:
        """Return when programs are paused.

        Raises:
            ConfigError: a figure is no share or no time, or the shares are in the wrong order.
        """
        return PausingConfig(self.pause_above, self.resume_below, self.max_pause, self.max_hold)


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulingOptions:
    """All options about scheduling."""

    policy: Policy = "fcfs"
    levels: LevelsOptions
    sharing: SharingOptions
    pausing: PausingOptions

    def config(self) -> SchedulerConfig:
        """Return the configuration of the scheduler.

        Raises:
            ConfigError: the options describe no scheduler, or do not fit the policy.
        """
        return SchedulerConfig(
            policy=self.policy,
            levels=self.levels.config([self.policy]),
            balancer=self.sharing.balancer,
            priority_scope=self.sharing.priority_scope,
            pausing=self.pausing.config(),
        )


def _require(
    policies: Sequence[str], having: tuple[str, ...], given: Mapping[str, str | float | None]
) -> None:
    """Check that at least one of ``policies`` is among those that have the options."""
    named = [option for option, value in given.items() if value is not None]
    if named and not set(policies) & set(having):
        raise ConfigError(
            f"{', '.join(named)}: not for --policy {' '.join(policies)}; choose {', '.join(having)}"
        )


def _beta(text: str | None) -> float | None:
    """Return the ratio that ``text`` gives, by default that of the policies; None for ``never``."""
    if text is None:
        return _DEFAULTS.beta
    if text == "never":
        return None
    try:
        ratio = float(text)
    except ValueError:
        ratio = nan
    if not (isfinite(ratio) and ratio > 0):
        raise ConfigError(f"--policy-beta is {text}: choose a finite number above 0, or never")
    return ratio


def _numbers(option: str, text: str | None) -> tuple[float, ...] | None:
    if text is None:
        return None
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise ConfigError(
            f"{option} is {text!r}: give numbers with commas between them, for example 64,256,1024"
        ) from None
