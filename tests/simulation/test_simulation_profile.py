"""Costs that are fitted to messages are those that the messages had; bad profiles are refused."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from random import Random
from typing import Any

import msgspec
import pytest

from quire.control import Controller
from quire.core.actions import Action
from quire.core.engine_info import EngineInfo
from quire.core.errors import ConfigError, EngineLost, InvalidArgument
from quire.core.events import EngineDown, EngineUp, Event
from quire.core.ids import EngineId, ModelId
from quire.core.scheduler_config import SchedulerConfig
from quire.simulation import LightEngine, StepCost, light_pool
from quire.simulation.engines import EngineSpec
from quire.simulation.message_times import MessageSample, MessageTimes
from quire.simulation.profile import (
    MIN_SAMPLES,
    EngineProfile,
    FitErrors,
    decode_profile,
    encode_profile,
    fit,
)
from quire.simulation.trial import SimulationRun
from quire.simulation.workloads import create_workload, draw_programs

COST = StepCost(
    message_s=0.002, step_s=0.01, row_s=0.0003, context_token_s=2e-6, prompt_s=0.003,
    prompt_token_s=0.0004, moved_block_s=0.0002, gap_s=0.001, gap_row_s=0.0001, behind_s=0.0004,
    behind_row_s=0.00005,
)  # fmt: skip
STATED = ("disk_block_s", "prompt_context_s", "pass_s")
"""Costs that no load of a profile shows."""

COSTS = {name: value for name, value in asdict(COST).items() if name not in STATED}
"""Those that a profile has: a real engine uses its disk beside the messages."""
WHO: dict[str, str] = {"machine": "a machine", "date": "2026-01-02", "release": "1"}


class Watched:
    """A controller whose messages are noted in ``times``."""

    def __init__(self, controller: Controller, times: MessageTimes) -> None:
        self._controller = controller
        self._times = times

    def handle(self, event: Event) -> list[Action]:
        actions = self._controller.handle(event)
        self._times.observe(event, actions)
        return actions

    def check_invariants(self) -> None:
        self._controller.check_invariants()


def measured(
    monkeypatch: pytest.MonkeyPatch, cost: StepCost, workload: str = "bfcl", **spec: Any
) -> MessageTimes:
    """The messages of a small load on a modelled engine."""
    times = MessageTimes()

    def made(scheduler: SchedulerConfig, **rest: Any) -> Watched:
        return Watched(Controller(scheduler, **rest), times)

    monkeypatch.setattr("quire.simulation.trial.Controller", made)
    plans = draw_programs(create_workload(workload), 6, 1)
    engines = EngineSpec(**{"max_sequences": 4, "cost": cost, **spec})
    arrivals = [0.3 * number for number in range(len(plans))]
    SimulationRun(plans, arrivals, engines, SchedulerConfig()).run()
    return times


def fitted(samples: Sequence[MessageSample], info: EngineInfo | None) -> EngineProfile:
    assert info is not None
    return fit(samples, info, **WHO)


def test_the_costs_of_a_modelled_engine_are_found_again(monkeypatch: pytest.MonkeyPatch) -> None:
    times = measured(monkeypatch, COST, "sharegpt", kv_tokens=3200, host_tokens=50_000)
    profile = fitted(times.samples, times.info)
    assert profile.most["moved_block_s"] > 0, "some blocks were swapped"
    assert profile.cost == pytest.approx(COSTS, rel=1e-6, abs=1e-9)
    assert profile.errors.p95 < 1e-6
    assert profile.num_messages == len(times.samples) > MIN_SAMPLES
    assert decode_profile(encode_profile(profile), "p") == profile


def test_messages_that_take_now_longer_now_shorter_come_out_right_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Those that were quick by chance do not count more than those that were slow."""
    times = measured(monkeypatch, COST)
    noise = Random(1)
    noisy = [
        replace(one, elapsed_s=one.elapsed_s * noise.choice([0.4, 1.0, 1.6]))
        for one in times.samples
    ]
    assert abs(fitted(noisy, times.info).errors.total) < 0.001


def test_overheads_are_means_and_never_negative(monkeypatch: pytest.MonkeyPatch) -> None:
    """A result that was read late makes the next message's time too short: they cancel out."""
    times = measured(monkeypatch, replace(COST, behind_row_s=0.0))
    late = [
        one if one.behind_s is None else replace(one, behind_s=one.behind_s + (-1) ** number / 500)
        for number, one in enumerate(times.samples)
    ]
    behind = [one for one in late if one.behind_s is not None]
    assert len(behind) > 50
    cost = fitted(late, times.info).cost
    found = [cost["behind_s"] + cost["behind_row_s"] * one.num_commands for one in behind]
    assert sum(found) == pytest.approx(sum(one.behind_s or 0.0 for one in behind))
    early = [replace(one, behind_s=-0.1 if one.behind_s else None) for one in times.samples]
    assert fitted(early, times.info).cost["behind_s"] == 0.0


def test_a_profile_says_how_k_and_v_lie(monkeypatch: pytest.MonkeyPatch) -> None:
    times = measured(monkeypatch, COST, num_layers=7, token_bytes=1234)
    profile = fitted(times.samples, times.info)
    assert (profile.num_layers, profile.token_bytes, profile.missing) == (7, 1234, ())
    engines = decode_profile(encode_profile(profile), "p").engines()
    assert (engines.num_layers, engines.token_bytes) == (7, 1234)


def test_one_of_an_older_format_names_what_it_does_not_say(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    times = measured(monkeypatch, COST, num_layers=7, token_bytes=1234)
    values = msgspec.to_builtins(fitted(times.samples, times.info))
    del values["num_layers"], values["token_bytes"]
    profile = decode_profile(json.dumps({**values, "format": "quire profile 3"}), "p")
    assert profile.missing == ("num_layers", "token_bytes")
    assert profile.engines().num_layers == EngineSpec().num_layers


@pytest.mark.parametrize(
    ("number", "new"),
    [(1, ("gap_row_s", "behind_s", "behind_row_s", "prompt_s")), (2, ("prompt_s",))],
)
def test_a_profile_of_an_older_format_is_read_without_the_costs_it_has_not(
    monkeypatch: pytest.MonkeyPatch, number: int, new: tuple[str, ...]
) -> None:
    times = measured(monkeypatch, COST)
    values = msgspec.to_builtins(fitted(times.samples, times.info))
    old = {name: value for name, value in values["cost"].items() if name not in new}
    cost = decode_profile(
        json.dumps({**values, "format": f"quire profile {number}", "cost": old}), "p"
    ).step_cost()
    assert [getattr(cost, name) for name in new] == [0.0] * len(new)
    assert cost.gap_s == values["cost"]["gap_s"]
    with pytest.raises(ConfigError, match="it must have"):
        decode_profile(json.dumps({**values, "cost": old}), "p")


def test_a_cost_that_never_showed_is_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    times = measured(monkeypatch, COST)
    profile = fitted(times.samples, times.info)
    assert profile.most["moved_block_s"] == 0
    assert profile.cost["moved_block_s"] == 0.0
    assert profile.cost["step_s"] == pytest.approx(COST.step_s)


def test_a_cost_is_never_negative(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages of many prompt tokens that take less than those of few."""
    times = measured(monkeypatch, COST)
    odd = [
        replace(one, elapsed_s=max(0.001, one.elapsed_s - 0.0009 * one.num_prompt_tokens))
        for one in times.samples
    ]
    profile = fitted(odd, times.info)
    assert min(profile.cost.values()) == profile.cost["prompt_token_s"] == 0.0
    assert profile.errors.mean > 0.1


def test_a_simulated_engine_is_like_the_one_that_was_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    times = measured(monkeypatch, COST, kv_tokens=8000, host_tokens=3200, max_batch_tokens=100)
    engines = fitted(times.samples, times.info).engines(3)
    assert (engines.num_engines, engines.kv_tokens, engines.host_tokens) == (3, 8000, 3200)
    assert (engines.max_sequences, engines.max_batch_tokens, engines.page_size) == (4, 100, 16)
    assert engines.cost.step_s == pytest.approx(COST.step_s)


def test_a_fit_that_misses_its_own_messages_is_doubtful() -> None:
    assert FitErrors(mean=0.2, p95=0.9, total=0.0).advice() == ""
    assert "off by 30 %" in FitErrors(mean=0.3, p95=0.9, total=0.0).advice()


def test_too_few_messages_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    times = measured(monkeypatch, COST)
    with pytest.raises(InvalidArgument, match="49 messages are too few"):
        fitted(times.samples[: MIN_SAMPLES - 1], times.info)


def test_engines_of_two_kinds_make_no_profile() -> None:
    times = MessageTimes()
    infos = [LightEngine(light_pool(num_blocks=n)).info for n in (4, 4, 5)]

    def up(number: int) -> None:
        name, info = EngineId(f"e#{number}"), infos[number]
        times.observe(EngineUp(time_s=0.0, engine=name, model=ModelId("e"), info=info), [])

    up(0)
    up(1)
    lost = EngineLost("gone").record()
    times.observe(EngineDown(time_s=0.0, engine=EngineId("e#0"), error=lost), [])
    with pytest.raises(InvalidArgument, match="other weights or pools"):
        up(2)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"cost": {**COSTS, "step_s": -0.5}}, r"step_s is -0.5; it must be seconds"),
        ({"cost": {**COSTS, "row_s": float("nan")}}, r"row_s is nan; it must be seconds"),
        ({"cost": {**COSTS, "behind_s": float("nan")}}, r"behind_s is nan; it must be"),
        ({"cost": {**COSTS, "gap_row_s": -1e-6}}, r"gap_row_s is -1e-06; it must be"),
        ({"cost": {"step_s": 1.0}}, r"has the costs \['step_s'\]: it must have \['behind_"),
        ({"errors": {"mean": float("inf"), "p95": 0.1, "total": 0.1}}, "error of the fit is inf"),
        ({"num_blocks": 0}, "profile p.json describes no engine: kv_tokens is 0"),
        ({"num_messages": -1}, "num_messages is -1; it must be 0 or more"),
        ({"most": {"row_s": -5}}, "row_s is -5; it must be 0 or more"),
        ({"format": "quire profile 9"}, "not a profile of 'quire profile'"),
        ({"num_layers": None}, "lacks num_layers: make it again"),
        ({"token_bytes": 0}, "token_bytes is 0: choose at least 1"),
        ({"speed": 3}, "unknown field `speed`"),
    ],
)
def test_profiles_with_impossible_figures_are_refused(
    monkeypatch: pytest.MonkeyPatch, change: dict[str, Any], words: str
) -> None:
    times = measured(monkeypatch, COST)
    values = {**msgspec.to_builtins(fitted(times.samples, times.info)), **change}
    with pytest.raises(ConfigError, match=words):
        decode_profile(json.dumps(values), "p.json")


def test_a_profile_that_was_cut_off_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    times = measured(monkeypatch, COST)
    text = encode_profile(fitted(times.samples, times.info))
    with pytest.raises(ConfigError, match=r"p.json is cut off or damaged at character \d+ of 200"):
        decode_profile(text[:200], "p.json")


@pytest.mark.parametrize(
    "text",
    ["[" * 100_000, '{"num_blocks":' + "9" * 5000 + "}", "NaN", "[]", '{"cost":{}}', '"\ud800"'],
)
def test_what_is_no_profile_at_all_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"p\.json is (not a profile|cut off)"):
        decode_profile(text, "p.json")


def test_a_profile_of_more_memory_than_can_be_modelled_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    times = measured(monkeypatch, COST)
    values = {**msgspec.to_builtins(fitted(times.samples, times.info)), "num_blocks": 10**15}
    with pytest.raises(ConfigError, match=r"kv_tokens is \d+: choose at most"):
        decode_profile(json.dumps(values), "p.json")
