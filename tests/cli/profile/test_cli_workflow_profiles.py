"""``--profile`` of ``quire serve`` and ``quire workflow``: which file is for which model."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from cli_invoke import invoke

from quire.cli.exit_codes import EXIT_ERROR
from quire.cli.profile.workflows import model_profile, read_profiles
from quire.core.config import EncoderConfig, EngineConfig
from quire.core.errors import ConfigError
from quire.core.ids import ModelId
from quire.programs.workflow.template.profiles import EncoderProfile, encode_encoder_profile
from quire.simulation.profile import EngineProfile, FitErrors, encode_profile

ENCODER = EncoderProfile(
    model="minilm", kind="embedding", machine="m", date="d", release="r", num_tokens=256,
    times=((1, 1.0), (2, 1.5), (4, 2.0)), max_efficient_batch=4,
)  # fmt: skip
COST = {
    "message_s": 0.004, "step_s": 0.002, "row_s": 0.0, "context_token_s": 0.0, "prompt_s": 0.01,
    "prompt_token_s": 0.001, "moved_block_s": 0.0, "gap_s": 0.0, "gap_row_s": 0.0,
    "behind_s": 0.0, "behind_row_s": 0.0,
}  # fmt: skip
MODEL = EngineProfile(
    model="large", machine="m", date="d", release="r", device="cpu", backend="x", dtype="float32",
    page_size=16, num_blocks=64, num_host_blocks=0, max_sequences=4, max_batch_tokens=1024,
    cost=COST, num_messages=64, most={}, num_layers=2, token_bytes=64,
    errors=FitErrors(0.0, 0.0, 0.0),
)  # fmt: skip


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "e.json").write_text(encode_encoder_profile(ENCODER), encoding="utf-8")
    (tmp_path / "m.json").write_text(encode_profile(MODEL), encoding="utf-8")
    (tmp_path / "x.json").write_text("[", encoding="utf-8")
    return {name: str(tmp_path / f"{name}.json") for name in "emx"}


@pytest.mark.parametrize("beside", [(), ("--nodes", "1")])
def test_a_simulation_warns_of_a_doubtful_profile(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, beside: tuple[str, ...]
) -> None:
    path = tmp_path / "doubtful.json"
    bad = msgspec.structs.replace(MODEL, errors=FitErrors(mean=0.43, p95=1.29, total=0.0))
    path.write_text(encode_profile(bad), encoding="utf-8")
    ran = invoke(capsys, "sim", "--programs", "1", "--profile", str(path), *beside)
    assert ran.err.count("off by 43 %") == 1, "it is told once"
    assert "measure again with nothing else" in ran.err.replace("\n", " ")


def engines(*names: str) -> list[EngineConfig]:
    return [EngineConfig(source="s", name=ModelId(name)) for name in names]


def encoders(*names: str) -> list[EncoderConfig]:
    return [EncoderConfig(source="s", name=ModelId(name)) for name in names]


def test_a_file_is_for_the_model_that_it_names_or_the_one_that_is_given(
    files: dict[str, str],
) -> None:
    found = read_profiles([files["e"], files["m"]], engines("small", "large"), encoders("minilm"))
    assert [(one.name, one.kind) for one in found] == [
        ("small", "llm"), ("large", "llm"), ("minilm", "embedding")
    ]  # fmt: skip
    assert found[0].profile.times == ()
    assert found[2].profile.max_efficient_batch == 4
    (named,) = read_profiles([f"mine={files['e']}"], [], encoders("mine"))
    assert named.name == "mine"
    assert [one.name for one in read_profiles([files["m"], files["e"]])] == ["large", "minilm"]


@pytest.mark.parametrize(
    ("given", "served", "message"),
    [
        ("e", "other", r"--profile of minilm: the node serves llm, other: give the profile"),
        ("x", "minilm", "damaged at character"),
        ("e e", "minilm", "minilm has a profile already"),
        ("e", "minilm ranker", "the encoders ranker have none and others do"),
        ("llm=e", "minilm", "--profile of llm: it is of another kind of model"),
        ("minilm=m", "minilm", "--profile of minilm: it is of another kind of model"),
    ],
)
def test_a_profile_that_fits_nothing_is_refused(
    files: dict[str, str], given: str, served: str, message: str
) -> None:
    texts = []
    for one in given.split():
        name, equals, file = one.rpartition("=")
        texts.append(f"{name}{equals}{files[file]}")
    with pytest.raises(ConfigError, match=message):
        read_profiles(texts, engines("llm"), encoders(*served.split()))
    with pytest.raises(ConfigError, match="no such file: make it"):
        read_profiles(["none.json"])


HOSTILE = {
    "deep": b"[" * 100_000,
    "digits": b'{"num_blocks":' + b"9" * 5000 + b"}",
    "bytes": b"\xff\xfe",
    "no times": encode_encoder_profile(msgspec.structs.replace(ENCODER, times=())).encode(),
    "endless": None,
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_file_that_is_no_profile_is_refused(
    case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, content = tmp_path / "p.json", HOSTILE[case]
    if content is None:
        file.symlink_to("/dev/zero")
    else:
        file.write_bytes(content)
    with pytest.raises(ConfigError, match=r"p\.json"):
        read_profiles([str(file)])
    ran = invoke(capsys, "sim", "--profile", str(file), "--programs", "1")
    assert ran.code == EXIT_ERROR
    assert "p.json" in "".join(ran.err.split())


def test_a_models_profile_tells_what_prompts_and_tokens_take() -> None:
    profile = model_profile(MODEL)
    assert profile.seconds(256) == pytest.approx(0.004 + 0.002 + 0.01 + 0.256)
    assert profile.seconds(4096) == pytest.approx(4 * 0.016 + 4.096), "in four chunks"
    assert profile.token_s == pytest.approx(0.002 + 0.004 / 5), "five steps in a message"
    free = msgspec.structs.replace(MODEL, cost=dict.fromkeys(COST, 0.0))
    assert model_profile(free).times == ()


def test_a_graph_is_explained_by_profiles(
    capsys: pytest.CaptureFixture[str], files: dict[str, str]
) -> None:
    ran = invoke(capsys, "workflow", "explain", "naive-rag", "--profile", files["e"])
    assert "28 elements in 7 stages, of at most 4 elements" in " ".join(ran.out.split()), ran.err
    ran = invoke(capsys, "serve", "--encoder", "a=none", "--profile", files["e"])
    assert "the node serves quire-mini, a" in " ".join(ran.err.split())
    assert json.loads(Path(files["e"]).read_text())["max_efficient_batch"] == 4
