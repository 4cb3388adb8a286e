"""Profiles: the costs of a real engine's messages, for engines of a simulation.

Owns the fit and the form of the file. Reads no file and runs no engine.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from math import isfinite
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from quire.core.engine_info import EngineInfo
from quire.core.errors import ConfigError, InvalidArgument
from quire.simulation.engines import EngineSpec
from quire.simulation.message_times import MessageSample
from quire.simulation.step_cost import StepCost

MIN_SAMPLES = 50

_COSTS = (
    "message_s", "step_s", "row_s", "context_token_s", "prompt_s", "prompt_token_s",
    "moved_block_s",
)  # fmt: skip
"""The costs in the order of ``_features``."""

_OVERHEADS = ("gap_s", "gap_row_s", "behind_s", "behind_row_s")
_NEW_COSTS = {
    "quire profile 1": ("gap_row_s", "behind_s", "behind_row_s", "prompt_s"),
    "quire profile 2": ("prompt_s",),
}
"""The costs that profiles of older formats lack. In the first a message behind another one began at
once, in both a prompt of one token cost as little as a token of a long one."""

_SHAPE = ("num_layers", "token_bytes")
"""The shape of K and V, which matters if they are sent. Profiles of formats 1 to 3 do not have
it."""

_NUM_WEIGHINGS = 4

MOST_OFF = 0.25
"""The mean error of a fit above which the measurement is doubtful: costs that miss a message by a
quarter cannot show differences between policies, which are smaller."""

F64 = NDArray[np.float64]


class FitErrors(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The difference of the fit from the messages that it was made from. ``mean`` and ``p95``: of
    the difference over the measured time; ``total``: of all times together, too long if
    positive."""

    mean: float
    p95: float
    total: float

    def advice(self) -> str:
        """Return what to do if the costs represent the messages badly; an empty text if they do
        not."""
        if self.mean <= MOST_OFF:
            return ""
        return (
            f"its costs are off by {100 * self.mean:.0f} % from the messages that they were made "
            f"from (mean; P95 {100 * self.p95:.0f} %), as if other work had run beside it: measure "
            "again with nothing else on the machine"
        )


class EngineProfile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``cost``: by the names of ``StepCost``. ``most``: the largest value of each feature that was
    measured; beyond it the profile is a guess, and a cost whose feature never occurred is 0.
    ``num_layers`` and ``token_bytes``: of K and V; None in older formats."""

    format: Literal["quire profile 1", "quire profile 2", "quire profile 3", "quire profile 4"] = (
        "quire profile 4"
    )
    model: str
    machine: str
    date: str
    release: str
    device: str
    backend: str
    dtype: str
    page_size: int
    num_blocks: int
    num_host_blocks: int
    max_sequences: int
    max_batch_tokens: int
    cost: dict[str, float]
    num_messages: int
    most: dict[str, int]
    errors: FitErrors
    num_layers: int | None = None
    token_bytes: int | None = None

    @property
    def missing(self) -> tuple[str, ...]:
        """The fields of K and V that it lacks, because it is of an older format."""
        return tuple(name for name in _SHAPE if getattr(self, name) is None)

    def step_cost(self) -> StepCost:
        return StepCost(**self.cost)

    def engines(self, num_engines: int = 1) -> EngineSpec:
        """Engines like the one that was measured; fields that are ``missing`` have the defaults of
        ``EngineSpec``."""
        said = {name: getattr(self, name) for name in _SHAPE if name not in self.missing}
        return EngineSpec(
            num_engines=num_engines,
            max_sequences=self.max_sequences,
            kv_tokens=self.num_blocks * self.page_size,
            host_tokens=self.num_host_blocks * self.page_size,
            max_batch_tokens=self.max_batch_tokens,
            page_size=self.page_size,
            cost=self.step_cost(),
            **said,
        )


def fit(
    samples: Sequence[MessageSample], info: EngineInfo, *, machine: str, date: str, release: str
) -> EngineProfile:
    """Return the profile of an engine that took these times for its messages, by least squares; a
    cost that would be negative is 0.

    Raises:
        InvalidArgument: too few messages.
    """
    if len(samples) < MIN_SAMPLES:
        raise InvalidArgument(
            f"{len(samples)} messages are too few for a profile: measure {MIN_SAMPLES} or more"
        )
    features = np.array([_features(one) for one in samples], np.float64)
    times_s = np.array([one.elapsed_s for one in samples])
    costs = _least_squares(features, times_s)
    cost = {name: float(value) for name, value in zip(_COSTS, costs, strict=True)}
    cost |= _overheads(samples)
    pool, group = info.pool, info.pool.groups[0]
    return EngineProfile(
        model=info.model,
        machine=machine,
        date=date,
        release=release,
        device=info.device,
        backend=info.backend,
        dtype=info.dtype,
        page_size=pool.page_size,
        num_blocks=group.num_blocks,
        num_host_blocks=group.num_host_blocks,
        max_sequences=pool.max_sequences,
        max_batch_tokens=pool.max_batch_tokens,
        cost=cost,
        num_messages=len(samples),
        most={name: int(most) for name, most in zip(_COSTS, features.max(axis=0), strict=True)}
        | _most_commands(samples),
        errors=_errors(features @ costs, times_s),
        num_layers=info.num_layers,
        token_bytes=sum(one.bytes_per_block for one in pool.groups) // pool.page_size,
    )


def _features(sample: MessageSample) -> tuple[int, ...]:
    return (
        1,
        sample.num_steps,
        sample.num_rows,
        sample.num_context_tokens,
        int(sample.num_prompt_tokens > 0),
        sample.num_prompt_tokens,
        sample.num_moved_blocks,
    )


def _least_squares(features: F64, times_s: F64) -> F64:
    """The costs, 0 or more, of messages that took ``times_s``. A message is weighted by the root of
    its time, so that neither short nor long ones dominate: the time by the costs, as measured times
    would give too much weight to messages that were quick by chance. So the sum of all times is
    right."""
    expected_s = times_s
    for _ in range(_NUM_WEIGHINGS):
        costs = _not_negative(features, times_s, 1 / np.sqrt(np.maximum(expected_s, 1e-6)))
        expected_s = features @ costs
    return costs


def _not_negative(features: F64, times_s: F64, weights: F64) -> F64:
    """The costs that are least off; the most negative one is left out until none is."""
    scale = features.max(axis=0)
    kept = [index for index in range(features.shape[1]) if scale[index] > 0]
    while kept:
        scaled = features[:, kept] / scale[kept] * weights[:, None]
        found = np.linalg.lstsq(scaled, times_s * weights, rcond=None)[0]
        worst = int(np.argmin(found))
        if found[worst] >= 0:
            break
        del kept[worst]
    costs = np.zeros(features.shape[1])
    if kept:
        costs[kept] = found / scale[kept]
    return costs


def _overheads(samples: Sequence[MessageSample]) -> dict[str, float]:
    """The overheads by the names of ``Overhead``: for messages to an idle engine, and for those
    behind others. Each second counts the same: rare work of control, such as a long plan, is part
    of the time that its messages take together."""
    idle = [(one.num_commands, one.gap_s) for one in samples if one.gap_s is not None]
    behind = [(one.num_commands, one.behind_s) for one in samples if one.behind_s is not None]
    return dict(zip(_OVERHEADS, [*_line(idle), *_line(behind)], strict=True))


def _line(found: Sequence[tuple[int, float]]) -> tuple[float, float]:
    """Seconds of a message, and of each command that it carries."""
    if not found:
        return 0.0, 0.0
    features = np.array([(1, num_commands) for num_commands, _ in found], np.float64)
    times_s = np.array([seconds for _, seconds in found])
    message_s, row_s = _not_negative(features, times_s, np.ones(len(found)))
    return float(message_s), float(row_s)


def _most_commands(samples: Sequence[MessageSample]) -> dict[str, int]:
    idle = [one.num_commands for one in samples if one.gap_s is not None]
    behind = [one.num_commands for one in samples if one.behind_s is not None]
    return {"gap_row_s": max(idle, default=0), "behind_row_s": max(behind, default=0)}


def _errors(predicted: F64, measured: F64) -> FitErrors:
    off = np.abs(predicted - measured) / np.maximum(measured, 1e-9)
    return FitErrors(
        mean=float(off.mean()),
        p95=float(np.percentile(off, 95)),
        total=float(predicted.sum() / measured.sum() - 1),
    )


def encode_profile(profile: EngineProfile) -> str:
    return json.dumps(msgspec.to_builtins(profile), indent=2) + "\n"


def decode_profile(text: str, name: str) -> EngineProfile:
    """Read a profile. ``name``: of the file, for errors.

    Raises:
        ConfigError: cut off, not a profile, or a figure that no engine has.
    """
    try:
        found: Any = json.loads(text)
    except json.JSONDecodeError as exc:
        raise ConfigError(
            f"profile {name} is cut off or damaged at character {exc.pos} of {len(text)}: make it "
            "again with 'quire profile'"
        ) from exc
    except (ValueError, RecursionError) as exc:  # a number too long for an int, or too many levels
        raise ConfigError(f"{name} is not a profile of 'quire profile': {exc}") from exc
    try:
        profile = msgspec.convert(found, EngineProfile)
    except (msgspec.ValidationError, UnicodeError) as exc:
        raise ConfigError(f"{name} is not a profile of 'quire profile': {exc}") from exc
    new = _NEW_COSTS.get(profile.format, ())
    profile.cost.update(dict.fromkeys(set(new) - profile.cost.keys(), 0.0))
    _check(profile, name)
    return profile


def _check(profile: EngineProfile, name: str) -> None:
    if set(profile.cost) != {*_COSTS, *_OVERHEADS}:
        raise ConfigError(
            f"profile {name} has the costs {sorted(profile.cost)}: it must have "
            f"{sorted([*_COSTS, *_OVERHEADS])}"
        )
    for cost, value in profile.cost.items():
        if not (isfinite(value) and value >= 0):
            raise ConfigError(f"profile {name}: {cost} is {value}; it must be seconds, 0 or more")
    if profile.missing and profile.format == "quire profile 4":
        raise ConfigError(
            f"profile {name} lacks {' and '.join(profile.missing)}: make it again with "
            "'quire profile'"
        )
    for figure in msgspec.structs.astuple(profile.errors):
        if not isfinite(figure):
            raise ConfigError(f"profile {name}: an error of the fit is {figure}")
    for figure, value in {"num_messages": profile.num_messages, **profile.most}.items():
        if value < 0:
            raise ConfigError(f"profile {name}: {figure} is {value}; it must be 0 or more")
    try:
        profile.engines()  # its checks are those of any engine
    except ConfigError as exc:
        raise ConfigError(f"profile {name} describes no engine: {exc}") from exc
