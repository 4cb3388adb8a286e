"""Measured profiles for the engines of an application, and the file that keeps one of an encoder.

Owns the choice of a profile for each engine. Reads no file and measures nothing; ``quire profile``
does.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from typing import Literal

import msgspec

from quire.core.encoding import EncoderKind
from quire.core.errors import ConfigError, InvalidArgument
from quire.programs.workflow.engines.engine import GAIN, NO_PROFILE, Engine, Profile
from quire.programs.workflow.template.app import App

EncoderFormat = Literal["quire encoder profile 1"]
ENCODER_FORMAT: EncoderFormat = "quire encoder profile 1"


class EncoderProfile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``times``: pairs of sequences, each of ``num_tokens`` tokens, and the seconds that they took
    together; the numbers double until throughput stops rising. ``max_efficient_batch``: the last
    number that raised it."""

    format: EncoderFormat = ENCODER_FORMAT
    model: str
    kind: EncoderKind
    machine: str
    date: str
    release: str
    num_tokens: int
    times: tuple[tuple[int, float], ...]
    max_efficient_batch: int

    def profile(self) -> Profile:
        return Profile(self.max_efficient_batch, self.times)


def encode_encoder_profile(profile: EncoderProfile) -> str:
    return json.dumps(msgspec.to_builtins(profile), indent=2) + "\n"


def decode_encoder_profile(text: str, name: str) -> EncoderProfile:
    """Decode the text of a profile. ``name``: the file's name, for errors.

    Raises:
        ConfigError: the text is not such a profile, or has impossible figures.
    """
    try:
        profile = msgspec.json.decode(text, type=EncoderProfile)
    except msgspec.DecodeError as exc:
        raise ConfigError(
            f"{name} is no profile of an encoder: {exc}: make it again with 'quire profile'"
        ) from exc
    seconds = [time_s for _, time_s in profile.times]
    try:
        known = Profile.of(profile.times)
    except InvalidArgument as exc:
        raise ConfigError(f"profile {name}: {exc.message}") from exc
    if not all(map(isfinite, seconds)) or profile.times[0][0] < 1:
        raise ConfigError(f"profile {name}: its times are {list(profile.times)}: measure it again")
    if known.max_efficient_batch != profile.max_efficient_batch:
        raise ConfigError(
            f"profile {name}: max_efficient_batch is {profile.max_efficient_batch}, and by its "
            f"times it is {known.max_efficient_batch}: measure it again"
        )
    return profile


async def doubled(
    measure: Callable[[int], Awaitable[float]], most: int
) -> tuple[tuple[int, float], ...]:
    """Measure batches of 1, 2, 4 elements and so on up to ``most``, until doubling gives no more
    throughput. ``measure`` returns the seconds of one batch."""
    size, best = 1, 0.0
    times: list[tuple[int, float]] = []
    while size <= most:
        times.append((size, await measure(size)))
        rate = size / times[-1][1]
        if rate < GAIN * best:
            break
        size, best = 2 * size, rate
    return tuple(times)


@dataclass(frozen=True, slots=True)
class ServedProfile:
    """The profile of a served model. ``kind``: the kind of the engines that the model serves."""

    name: str
    kind: Literal["llm", "embedding", "rerank"]
    profile: Profile


def use_profiles(app: App, served: Sequence[ServedProfile]) -> App:
    """Give the engines of ``app`` the profiles of the models that serve them, and return ``app``.
    ``served``: in the order of the node. A profile that the developer has given stays."""
    for name, engine in app.engines.items():
        found = _of(engine, served)
        if found is not None and (engine.profile.assumed or engine.profile == NO_PROFILE):
            app.engines[name] = replace(engine, profile=found)
    return app


def _of(engine: Engine, served: Sequence[ServedProfile]) -> Profile | None:
    if engine.endpoint is not None:
        return None
    wanted = engine.config.get("model")
    fitting = [
        one.profile for one in served if one.kind == engine.kind and wanted in (None, one.name)
    ]
    if engine.config.get("light"):
        # a profile has no number of parameters: the quickest model counts as the lightest
        measured = [profile for profile in fitting if profile != NO_PROFILE]
        return min(measured, key=lambda profile: profile.token_s, default=None)
    return fitting[0] if fitting else None
