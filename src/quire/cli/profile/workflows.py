"""``--profile`` of ``quire serve`` and ``quire workflow``: files of ``quire profile`` for the
engines of workflows.

Owns how a file of either kind is applied to the primitives of a workflow.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from quire.cli.profile.files import profile_text
from quire.core.config import EncoderConfig, EngineConfig
from quire.core.errors import ConfigError
from quire.core.scheduler_config import SchedulerConfig
from quire.programs.workflow.engines.engine import NO_PROFILE, Profile
from quire.programs.workflow.template.profiles import (
    ENCODER_FORMAT,
    ServedProfile,
    decode_encoder_profile,
)
from quire.simulation.profile import EngineProfile, decode_profile

PROMPT_TOKENS = (1, 64, 256, 1024, 4096)
"""Lengths of prompts whose times represent all lengths."""


def read_profiles(
    texts: Sequence[str],
    engines: Sequence[EngineConfig] | None = None,
    encoders: Sequence[EncoderConfig] = (),
) -> list[ServedProfile]:
    """Return the profiles of ``FILE`` or ``NAME=FILE``, where NAME is a served model that the file
    does not name itself. ``engines`` and ``encoders``: those that the node serves; None: nothing is
    known of the node, and the order of ``texts`` is that of the models.

    Raises:
        ConfigError: a file is no profile, or of a model that is not served; a model has two; or
            some encoders have one and others do not.
    """
    found: dict[str, ServedProfile] = {}
    for text in texts:
        name, _, path = text.rpartition("=")
        one = _read(Path(path), name)
        if one.name in found:
            raise ConfigError(f"--profile {text}: {one.name} has a profile already: give one")
        found[one.name] = one
    return list(found.values()) if engines is None else _ordered(found, engines, encoders)


def _ordered(
    found: dict[str, ServedProfile],
    engines: Sequence[EngineConfig],
    encoders: Sequence[EncoderConfig],
) -> list[ServedProfile]:
    """Return the profiles in the order of the served models; a model without one has an empty
    one."""
    served = {str(one.name): "llm" for one in engines} | {str(one.name): "" for one in encoders}
    for name, one in found.items():
        if name not in served:
            raise ConfigError(
                f"--profile of {name}: the node serves {', '.join(served) or 'no model'}: give "
                f"the profile of one of them, or NAME=FILE if it is served as NAME"
            )
        if (served[name] == "llm") != (one.kind == "llm"):
            raise ConfigError(f"--profile of {name}: it is of another kind of model: measure it")
    lacking = [str(one.name) for one in encoders if str(one.name) not in found]
    if lacking and len(lacking) < len(encoders):
        raise ConfigError(
            f"--profile: the encoders {', '.join(lacking)} have none and others do: give one for "
            "each, or none"
        )
    models = [found.get(str(one.name), ServedProfile(str(one.name), "llm", NO_PROFILE))
              for one in engines]  # fmt: skip
    return models + [found[str(one.name)] for one in encoders if str(one.name) in found]


def _read(path: Path, name: str) -> ServedProfile:
    text = profile_text(path)
    if _is_of_an_encoder(text):
        encoder = decode_encoder_profile(text, str(path))
        name = name or encoder.model
        if encoder.kind == "embedding":
            return ServedProfile(name, "embedding", encoder.profile())
        return ServedProfile(name, "rerank", encoder.profile())
    model = decode_profile(text, str(path))
    return ServedProfile(name or model.model, "llm", model_profile(model))


def _is_of_an_encoder(text: str) -> bool:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return isinstance(found, dict) and found.get("format") == ENCODER_FORMAT


def model_profile(profile: EngineProfile) -> Profile:
    """Return the times of a prompt and a token on an engine that does nothing else."""
    cost, scheduler = profile.step_cost(), SchedulerConfig()
    message_s = cost.message_s + cost.gap_s + cost.gap_row_s
    step_s = cost.step_s + cost.row_s

    def prompt_s(num_tokens: int) -> float:
        chunks = range(profile.max_batch_tokens, num_tokens + profile.max_batch_tokens,
                       profile.max_batch_tokens)  # fmt: skip
        ends = [min(end, num_tokens) for end in chunks]
        whole_s = len(ends) * (message_s + step_s + cost.prompt_s)
        return whole_s + num_tokens * cost.prompt_token_s + sum(ends) * cost.context_token_s

    steps = scheduler.max_steps_per_message
    if step_s > 0:
        steps = max(1, min(steps, int(scheduler.step_quantum_s / step_s)))
    times = tuple((num, prompt_s(num)) for num in PROMPT_TOKENS if prompt_s(num) > 0)
    return Profile(times=times, token_s=step_s + message_s / steps)
