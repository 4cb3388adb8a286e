"""``quire sim``: a table, the same bytes twice, refusals with the choices and figures."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from cli_invoke import invoke

Capture = pytest.CaptureFixture[str]

SMALL = ("sim", "--workload", "bfcl", "--programs", "4", "--seed", "1", "--max-sequences", "2")


def test_policies_are_compared_and_the_same_seed_gives_the_same_bytes(
    capsys: Capture, tmp_path: Path
) -> None:
    files = [tmp_path / "first.json", tmp_path / "second.json"]
    policies = ("--policy", "fcfs", "--policy", "plas", "--policy", "srpt", "--policy", "gittins")
    first, second = (
        invoke(capsys, *SMALL, *policies, "--load", "2", "--output", str(file)) for file in files
    )
    assert first.code == 0
    assert first.out == second.out
    assert files[0].read_bytes() == files[1].read_bytes()
    written = json.loads(files[0].read_text(encoding="utf-8"))
    assert [one["policy"] for one in written["policies"]] == ["fcfs", "plas", "srpt", "gittins"]
    assert written["study"]["arrivals"]["rate"] == pytest.approx(2 * written["capacity"])
    for one in written["policies"]:
        assert len(one["programs"]) == one["summary"]["num_programs"] == 4
        assert one["summary"]["num_failed"] == 0
        assert f"{one['policy']}: " in first.err, "control's time is told apart"
        assert one["policy"] in first.out
    assert "control_s" not in files[0].read_text(encoding="utf-8")


def test_arrivals_costs_and_queues_are_obeyed(capsys: Capture, tmp_path: Path) -> None:
    file = tmp_path / "out.json"
    closed = ("--arrivals", "closed", "--width", "3", "--cost", "step_s=0.5")
    queues = ("--policy", "plas", "--policy-thresholds", "10,20", "--policy-beta", "never")
    engines = ("--engines", "2", "--balancer", "least_used", "--page-size", "64")
    pauses = (
        "--pause-above",
        "0.9",
        "--resume-below",
        "0.7",
        "--max-pause",
        "9",
        "--max-hold",
        "3",
    )
    ran = invoke(capsys, *SMALL, *closed, *queues, *engines, *pauses, "--output", str(file))
    assert ran.code == 0
    assert "3 at a time; 2 engines" in ran.out
    written = json.loads(file.read_text(encoding="utf-8"))
    assert written["balancer"] == "least_used"
    assert list(written["pausing"].values()) == [0.9, 0.7, 9.0, 3.0]
    assert written["levels"]["thresholds"] == [10, 20]
    assert written["levels"]["beta"] is None
    assert written["study"]["engines"]["cost"]["step_s"] == 0.5
    assert written["study"]["engines"]["page_size"] == 64
    assert [one["arrived_s"] for one in written["policies"][0]["programs"]][:3] == [0.0] * 3


def test_all_at_once_with_identical_steps(capsys: Capture) -> None:
    ran = invoke(capsys, *SMALL, "--arrivals", "at-once", "--identical-steps")
    assert ran.code == 0
    assert "all at once" in ran.out


def test_a_program_that_fails_shows_in_the_status(capsys: Capture) -> None:
    ran = invoke(capsys, *SMALL, "--arrivals", "at-once", "--kv-tokens", "64")
    assert ran.code == 1
    assert "inf" in ran.out
    assert "fcfs: 4 of 4 programs failed" in ran.err
    assert re.search(r"program 0: .*needs \d+ pages .* pool has 4: .* \(3 more like it\)", ran.err)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--workload", "chat"), "sharegpt"),
        (("--policy", "sjf"), "srpt"),
        (("--arrivals", "bursty"), "poisson"),
        (("--programs", "0"), "--programs is 0: choose at least 1"),
        (("--seed", "-1"), "--seed is -1: choose 0 or more"),
        (("--arrivals", "closed", "--width", "0"), "--width is 0: choose at least 1"),
        (("--engines", "0"), "--engines is 0"),
        (("--page-size", "0"), "--page-size is 0: choose at least 1"),
        (("--page-size", "8", "--profile", "x.json"), "--page-size 8 beside --profile"),
        (("--rate", "-1"), "-1.0 programs/s"),
        (("--load", "0"), "the load is 0.0"),
        (("--load", "1", "--rate", "1"), "--load 1 beside --rate 1"),
        (("--arrivals", "at-once", "--load", "1"), "a load is a rate"),
        (("--arrivals", "at-once", "--rate", "1"), "--rate 1 beside"),
        (("--width", "3"), "--width 3 beside"),
        (("--arrivals", "closed"), "--width"),
        (("--cost", "step=1"), "step_s"),
        (("--cost", "step_s=1", "--identical-steps"), "--identical-steps"),
        (("--policy-beta", "2"), "not for --policy fcfs"),
        (("--policy", "plas", "--policy-thresholds", "9,3"), "[9.0, 3.0]"),
        (("--resume-below", "0"), "--resume-below is 0 and --pause-above"),
        (("--output", "missing-folder/out.json"), "no folder missing-folder"),
    ],
)
def test_what_cannot_be_simulated_is_refused(
    capsys: Capture, arguments: tuple[str, ...], told: str
) -> None:
    ran = invoke(capsys, *SMALL, *arguments)
    assert ran.code == 2
    assert told in ran.err


def test_requests_to_nodes_have_no_seed_below_0(capsys: Capture) -> None:
    ran = invoke(capsys, "sim", "--nodes", "2", "--programs", "4", "--seed", "-1")
    assert ran.code == 2
    assert "--seed is -1: choose 0 or more" in ran.err


def test_a_simulation_without_nodes_loads_neither_routers_nor_the_node() -> None:
    """They take three times as long to import as all that it needs."""
    asked = (
        "import quire.cli.sim.command, sys; "
        "print([name for name in sys.modules if 'quire' in name])"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", asked], capture_output=True, check=True, text=True
    ).stdout
    assert "quire.simulation.studies" in loaded
    for package in ("quire.node", "quire.server", "quire.cluster"):
        assert package not in loaded
