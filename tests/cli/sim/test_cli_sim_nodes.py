"""``quire sim --nodes``: strategies in one table, the same bytes twice, refusals with the
choices."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from cli_invoke import invoke
from msgspec.structs import replace

from quire.simulation.profile import EngineProfile, FitErrors, encode_profile

Capture = pytest.CaptureFixture[str]

SMALL = ("sim", "--nodes", "2", "--programs", "8", "--seed", "1")
SHORT = ("--requests", "prompt=100,answer=5,spread=3,shape=normal")


def test_strategies_are_compared_and_the_same_options_give_the_same_bytes(
    capsys: Capture, tmp_path: Path
) -> None:
    own = tmp_path / "mine.py"
    own.write_text(
        "class Last:\n"
        "    def __init__(self, place=-1):\n"
        "        self.place = place\n"
        "    async def __call__(self, request, engines):\n"
        "        return await engines[self.place % len(engines)].send(request)\n"
    )
    files = [tmp_path / "first.json", tmp_path / "second.json"]
    named = ("data_parallel", "balanced:ratio=0.25,num_prefill=1", f"{own}:Last:place=1")
    strategies = [part for one in named for part in ("--strategy", one)]
    links = ("--link", "bytes_per_s=1e9,call_s=0,token_bytes=1000,num_layers=2")
    first, second = (
        invoke(capsys, *SMALL, *SHORT, *strategies, *links, "--load", "0.5", "--output", str(file))
        for file in files
    )
    assert first.code == 0, first.err
    assert first.out == second.out
    assert files[0].read_bytes() == files[1].read_bytes()
    assert "8 requests" in first.out
    assert "0.50 of the capacity; 2 nodes, seed 1" in " ".join(first.out.split())
    written = json.loads(files[0].read_text(encoding="utf-8"))
    assert written["study"]["load"]["rate"] == pytest.approx(0.5 * written["capacity"])
    assert written["study"]["link"]["bytes_per_s"] == 1e9
    assert written["study"]["engine"]["token_bytes"] == 1000
    turns, balanced, last = written["strategies"]
    assert [one["strategy"] for one in (turns, balanced)] == list(named[:2])
    assert turns["summary"]["num_sent_bytes"] == 0
    assert turns["summary"]["most_share"] == 0.5
    assert balanced["summary"]["num_sent_bytes"] > 8 * 70 * 1000
    assert {one["engine"] for one in last["requests"]} == {"node-1"}
    assert first.err.count("8 requests in") == 3, "real seconds are told apart"


def test_engines_and_rates_are_those_of_the_other_options(capsys: Capture, tmp_path: Path) -> None:
    file = tmp_path / "out.json"
    engine = ("--cost", "step_s=0.5", "--max-sequences", "3", "--kv-tokens", "4096")
    ran = invoke(
        capsys, *SMALL, *SHORT, *engine, "--rate", "2", "--policy", "plas", "--output", str(file)
    )
    assert ran.code == 0, ran.err
    study = json.loads(file.read_text(encoding="utf-8"))["study"]
    assert study["load"]["rate"] == 2
    assert study["engine"]["cost"]["step_s"] == 0.5
    assert (study["engine"]["max_sequences"], study["engine"]["kv_tokens"]) == (3, 4096)
    assert study["scheduler"]["policy"] == "plas"


def test_prefixes_are_shared(capsys: Capture) -> None:
    shared = ("--requests", "prompt=16,answer=2,shape=normal,prefixes=1,prefix=160")
    ran = invoke(capsys, *SMALL, *shared, "--rate", "0.1", "--strategy", "cache_aware")
    assert ran.code == 0, ran.err
    [row] = [line for line in ran.out.splitlines() if "cache_aware" in line]
    assert row.split()[-2] == "0.80", "of 176 tokens 160, but for the first request"


def test_a_request_that_fails_shows_in_the_status(capsys: Capture) -> None:
    ran = invoke(capsys, *SMALL, *SHORT, "--rate", "1", "--kv-tokens", "32")
    assert ran.code == 1
    assert "requests failed" in ran.err
    assert "the whole pool has 2" in ran.err
    assert "inf" in ran.out


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--strategy", "magic"), "no strategy 'magic' is shipped"),
        (("--strategy", "balanced:share=1"), "ratio"),
        (("--strategy", "balanced:0.1"), "write NAME=VALUE"),
        (("--requests", "prompts=3"), "choose from prompt, answer"),
        (("--requests", "prompt=long"), "write it as prompt=200"),
        (("--requests", "shape=flat"), "choose from normal, lognormal"),
        (("--requests", "prefixes=3"), "3 prefixes of 0 tokens"),
        (("--requests", f"prompt={10**15}"), "choose at most 1048576 tokens"),
        (("--requests", "spread=1e300,shape=normal"), "a spread of lengths is 1e+300: choose 0 to"),
        (("--requests", "spread=nan,shape=normal"), "a spread of lengths is nan: choose 0 to"),
        (("--requests", f"prefixes={10**12},prefix=8"), "choose at most 1048576 of each"),
        (("--requests", f"prefixes=3,prefix={10**12}"), "choose at most 1048576 of each"),
        (("--programs", f"{10**12}"), "--programs is 1000000000000: choose 1 to 16777216"),
        (("--kv-tokens", f"{10**15}"), "choose at most 1073741824"),
        (("--link", "bytes_per_s=0"), "bytes_per_s is 0"),
        (("--link", "speed=3"), "choose from bytes_per_s, "),
        (("--link", "token_bytes=0"), "token_bytes is 0"),
        (("--workload", "bfcl"), "--workload bfcl beside --nodes"),
        (("--engines", "2"), "a node has one"),
        (("--policy", "srpt"), "nodes have one policy"),
        (("--policy", "fcfs", "--policy", "plas"), "nodes have one policy"),
        (("--rate", "1", "--load", "1"), "leave one of them out"),
    ],
)
def test_what_cannot_be_simulated_is_refused(
    capsys: Capture, arguments: tuple[str, ...], told: str
) -> None:
    ran = invoke(capsys, *SMALL, *arguments)
    assert ran.code == 2
    assert told in " ".join(ran.err.split())


PROFILE = EngineProfile(
    model="m", machine="x", date="d", release="r", device="cpu", backend="cpu", dtype="float32",
    page_size=16, num_blocks=512, num_host_blocks=0, max_sequences=4, max_batch_tokens=64,
    cost={
        "message_s": 0.001, "step_s": 0.01, "row_s": 0.0, "context_token_s": 0.0, "prompt_s": 0.0,
        "prompt_token_s": 0.0001, "moved_block_s": 0.0, "gap_s": 0.0, "gap_row_s": 0.0,
        "behind_s": 0.0, "behind_row_s": 0.0,
    },
    num_messages=50, most={}, errors=FitErrors(0.0, 0.0, 0.0), num_layers=3, token_bytes=500,
)  # fmt: skip


def profiled(capsys: Capture, folder: Path, profile: EngineProfile, *more: str) -> tuple[Any, str]:
    """The engine of the study, and what was said beside it."""
    file, out = folder / "m.json", folder / "out.json"
    file.write_text(encode_profile(profile), encoding="utf-8")
    given = ("--profile", str(file), "--strategy", "balanced:ratio=0.25,num_prefill=1")
    ran = invoke(capsys, *SMALL, *SHORT, *given, *more, "--load", "0.5", "--output", str(out))
    assert ran.code == 0, ran.err
    written = json.loads(out.read_text(encoding="utf-8"))
    (one,) = written["strategies"]
    assert one["summary"]["num_sent_bytes"] % written["study"]["engine"]["token_bytes"] == 0
    return written["study"]["engine"], " ".join(ran.err.split())


def test_transfers_are_those_of_the_engine_that_was_measured(
    capsys: Capture, tmp_path: Path
) -> None:
    engine, said = profiled(capsys, tmp_path, PROFILE)
    assert (engine["num_layers"], engine["token_bytes"]) == (3, 500)
    assert "is assumed" not in said
    engine, _ = profiled(capsys, tmp_path, PROFILE, "--link", "token_bytes=700")
    assert (engine["num_layers"], engine["token_bytes"]) == (3, 700)


def test_of_an_older_profile_it_is_told_what_is_assumed(capsys: Capture, tmp_path: Path) -> None:
    old = replace(PROFILE, format="quire profile 3", num_layers=None, token_bytes=None)
    engine, said = profiled(capsys, tmp_path, old)
    assert (engine["num_layers"], engine["token_bytes"]) == (32, 4096)
    assert "does not say num_layers and token_bytes" in said
    assert "say it with --link num_layers=32,token_bytes=4096" in said
    _, said = profiled(capsys, tmp_path, old, "--link", "token_bytes=700")
    assert "num_layers=32 is assumed" in said
    _, said = profiled(capsys, tmp_path, old, "--link", "token_bytes=700,num_layers=2")
    assert "is assumed" not in said


@pytest.mark.parametrize("option", ["strategy", "requests", "link"])
def test_options_of_nodes_need_nodes(capsys: Capture, option: str) -> None:
    ran = invoke(capsys, "sim", f"--{option}", "quire")
    assert ran.code == 2
    assert f"--{option} without --nodes" in ran.err
