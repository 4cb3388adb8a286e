"""``quire profile`` from a load and from a log, and ``quire sim`` with what it wrote."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest
import tokenizers
from cli_invoke import invoke

from quire.cli.profile.command import measure, measure_encoder, named_after
from quire.cli.profile.engines import Round, rounds
from quire.cli.recorded_logs import read_times
from quire.core.config import EncoderConfig, EngineConfig, NodeConfig
from quire.core.ids import ModelId
from quire.engine.encoders.text import EncoderTexts
from quire.node import ModelFiles, Node
from quire.node.encoders.transport import EncoderTransports, in_process_encoder
from quire.node.transports import InProcessTransport
from quire.programs.workflow.template.profiles import decode_encoder_profile, encode_encoder_profile
from quire.simulation import StepCost
from quire.testing import FakeEncoder, FakeEngine, FakeTokenizer, StepTime, fake_pool

Capture = pytest.CaptureFixture[str]


def transport(config: EngineConfig) -> InProcessTransport:
    pool = fake_pool(num_blocks=64, max_sequences=2, page_size=config.page_size)
    time = StepTime(base_s=0.25, per_token_s=0.125)
    return InProcessTransport(config.name, lambda: FakeEngine(pool, model="fake", step_time=time))


async def record(path: Path) -> None:
    """The log of a measurement of a fake engine."""
    config = EngineConfig(source="fake", name=ModelId("fake"), page_size=16)
    node = Node(
        NodeConfig((config,), record_path=path),
        transport_factory=transport,
        model_files=lambda _: ModelFiles(FakeTokenizer(), FakeTokenizer.chat_template),
    )
    await node.start()
    try:
        await measure(node)
    finally:
        await node.stop()


def test_rounds_fit_the_engine() -> None:
    found = list(rounds(max_sequences=5, num_slots=800, max_model_len=300))
    assert found == [
        Round(1, 16), Round(1, 128), Round(2, 16), Round(2, 128), Round(4, 16),
    ]  # fmt: skip


async def test_a_measurement_reads_the_engines_own_time(tmp_path: Path) -> None:
    path = tmp_path / "events.log"
    await record(path)
    times = read_times(path)
    assert times.info is not None
    assert times.info.model == "fake"
    assert {one.num_prompt_tokens for one in times.samples} >= {0, 16, 128}
    assert max(one.num_rows // max(1, one.num_steps) for one in times.samples) == 2
    for one in times.samples:
        assert one.elapsed_s >= 0.25
        assert one.gap_s is None or one.gap_s >= 0


async def test_the_programs_of_a_log_are_played_again(capsys: Capture, tmp_path: Path) -> None:
    log, *files = (tmp_path / name for name in ("events.log", "a.json", "b.json"))
    await record(log)
    for file in files:
        ran = invoke(capsys, "sim", "--log", str(log), "--output", str(file))
        assert ran.code == 0, ran.err
        assert "as recorded" in ran.out
    assert files[0].read_bytes() == files[1].read_bytes()
    [policy] = json.loads(files[0].read_text(encoding="utf-8"))["policies"]
    assert policy["summary"]["num_failed"] == 0
    refused = invoke(capsys, "sim", "--log", str(log), "--rate", "2")
    assert refused.code != 0
    assert "--rate 2.0 beside --log" in refused.err
    log.write_bytes(log.read_bytes()[:-5])
    cut = invoke(capsys, "sim", "--log", str(log))
    assert cut.code != 0
    assert "is cut off: its last" in cut.err
    assert "record until the node has stopped" in cut.err


async def test_a_log_becomes_a_profile_that_a_simulation_obeys(
    capsys: Capture, tmp_path: Path
) -> None:
    log, profile, result = (tmp_path / name for name in ("events.log", "p.json", "r.json"))
    await record(log)
    ran = invoke(capsys, "profile", "--log", str(log), "--output", str(profile))
    assert ran.code == 0
    assert "the fit is off by" in ran.out
    written = json.loads(profile.read_text(encoding="utf-8"))
    assert (written["model"], written["max_sequences"]) == ("fake", 2)
    stated = {"disk_block_s", "prompt_context_s", "pass_s"}
    assert written["cost"].keys() == asdict(StepCost()).keys() - stated, (
        "the disk's blocks move beside the messages, so what they take is in none, and what "
        "attention takes and the least of a pass are not fitted"
    )
    small = ("sim", "--workload", "bfcl", "--programs", "2", "--profile", str(profile))
    changed = ("--kv-tokens", "100000", "--cost", "row_s=7")
    ran = invoke(capsys, *small, *changed, "--output", str(result))
    assert ran.code == 0
    engines = json.loads(result.read_text(encoding="utf-8"))["study"]["engines"]
    assert engines["cost"] == {**written["cost"], **dict.fromkeys(stated, 0), "row_s": 7}
    assert (engines["max_sequences"], engines["kv_tokens"]) == (2, 100_000)


async def test_an_encoder_is_measured_alone() -> None:
    config = EncoderConfig(source="fake", name=ModelId("fake"))
    transports = EncoderTransports(
        lambda config, on_progress: in_process_encoder(
            config.name, lambda: FakeEncoder("cross_encoder", max_pending=2)
        ),
        lambda source: EncoderTexts(tokenizers.Tokenizer(tokenizers.models.WordLevel()), 16, ""),
    )
    node = Node(
        NodeConfig((), encoders=(config,), engine_process=False), encoder_transports=transports
    )
    await node.start()
    try:
        found = await measure_encoder(node)
    finally:
        await node.stop()
    assert (found.model, found.kind, found.num_tokens) == ("fake", "cross_encoder", 16)
    assert [num for num, _ in found.times] in ([1], [1, 2]), "no more than may wait"
    assert decode_encoder_profile(encode_encoder_profile(found), "f") == found


def test_the_profile_of_a_model_with_a_slash_is_one_file() -> None:
    assert named_after("org/name") == Path("org-name.profile.json")


def test_what_cannot_be_profiled_is_refused(capsys: Capture, tmp_path: Path) -> None:
    empty, folder = tmp_path / "empty.log", tmp_path / "none" / "p.json"
    empty.write_bytes(b"")
    for arguments, words in (
        (("profile", "--log", str(empty)), "is empty or cut off"),
        (("profile", "quire-mini", "--log", str(empty)), "give one of them"),
        (("profile", "--output", str(folder)), "there is no folder"),
        (("profile", "--output", str(tmp_path)), "is a folder: name a file in it"),
        (("sim", "--output", str(tmp_path)), "is a folder: name a file in it"),
        (("profile", "a", "--encoder", "b"), "--encoder b beside the model a: give one"),
        (("profile", "--log", str(empty), "--encoder", "b"), "--encoder b beside --log"),
        (("sim", "--profile", str(empty)), "damaged at character 0 of 0"),
        (("sim", "--profile", str(folder)), "no such file: make it with"),
        (("sim", "--identical-steps", "--profile", str(empty)), "beside --identical-steps"),
    ):
        ran = invoke(capsys, *arguments)
        assert ran.code != 0
        assert words in ran.err.replace("\n", " ")
