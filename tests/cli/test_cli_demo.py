"""``quire demo`` as a newcomer runs it: a process of its own, from start to end."""

from __future__ import annotations

import dataclasses
import io
import os
import re
import subprocess
import sys

import httpx
import pytest
from rich.console import Console

from quire.cli.demo import report
from quire.cli.demonstration import AGENT_ANSWER, AgentRun, Demonstration, StreamedCall

GOOD = Demonstration(
    turns=(
        StreamedCall("What can you do?", "A lot.", 9, 0, 12, 4, 0.1, 0.4),
        StreamedCall("What is Quire?", "A server.", 30, 16, 8, 3, 0.05, 0.2),
    ),
    agent=AgentRun("How many?", AGENT_ANSWER, (("calc(1+1)", "2"),), []),
    overlap_s=0.3,
)


def test_what_a_good_demonstration_shows() -> None:
    console = Console(file=io.StringIO(), width=100)
    report(console, GOOD)
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert GOOD.failures() == []
    for shown in ("A lot.", "calc(1+1) = 2", "16", "400 ms", "Where to go next"):
        assert shown in text
    assert re.search(r"\b30\b.*\b40\b", text), "12 tokens in 0.4 s are 30, 8 in 0.2 s are 40"


@pytest.mark.parametrize(
    ("bad", "failure"),
    [
        (dataclasses.replace(GOOD, overlap_s=-0.1), "same time"),
        (
            dataclasses.replace(
                GOOD, turns=(dataclasses.replace(GOOD.turns[0], answer=""), GOOD.turns[1])
            ),
            "no answer to 'What can you do",
        ),
        (
            dataclasses.replace(
                GOOD, turns=(dataclasses.replace(GOOD.turns[1], num_cached_tokens=0),)
            ),
            "reused no tokens",
        ),
        (
            dataclasses.replace(GOOD, agent=dataclasses.replace(GOOD.agent, answer="7")),
            f"answered '7', right is '{AGENT_ANSWER}'",
        ),
        (
            dataclasses.replace(GOOD, agent=dataclasses.replace(GOOD.agent, calls=())),
            "called no tool",
        ),
    ],
)
def test_what_counts_as_a_failure(bad: Demonstration, failure: str) -> None:
    (found,) = bad.failures()
    assert failure in found


@pytest.mark.e2e
@pytest.mark.timeout(300)
def test_the_demonstration_runs_and_leaves_nothing_behind() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "quire.cli", "demo"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "QUIRE_PORT": "1", "OMP_NUM_THREADS": "1"},
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stderr == ""
    assert f"Answer: {AGENT_ANSWER}" in ran.stdout
    # a loaded machine may look at the table only after the agent has ended
    assert re.search(r"react\s+inferlet\s+(running|finished)", ran.stdout)
    assert re.search(r"demo-chat\s+session", ran.stdout)
    (url,) = set(re.findall(r"http://127\.0\.0\.1:\d+", ran.stdout))
    with pytest.raises(httpx.ConnectError):
        httpx.get(url)
