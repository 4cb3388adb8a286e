"""Which contenders a machine measures, and what each is started with."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import report
from benchmarks.http.systems import default_systems
from benchmarks.peers import catalog
from benchmarks.peers.catalog import PeerMissing, available, default_peers, launch

CPUINFO = """\
processor\t: 0
model name\t: A processor
flags\t\t: fpu {flags} sse2

processor\t: 1
flags\t\t: fpu
"""


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """A model, and environments in which nothing is installed but an interpreter's name."""
    model = tmp_path / "models" / "tiny"
    model.mkdir(parents=True)
    (model / "tokenizer.json").touch()
    for peer in ("vllm", "llamacpp"):
        (tmp_path / peer / "bin").mkdir(parents=True)
        (tmp_path / peer / "bin" / "python").touch()
    return tmp_path


def processor_with(monkeypatch: pytest.MonkeyPatch, flags: str) -> None:
    class Cpuinfo:
        def __init__(self, path: str) -> None:
            assert path == "/proc/cpuinfo"

        def read_text(self, encoding: str) -> str:
            return CPUINFO.format(flags=flags)

    monkeypatch.setattr(report, "Path", Cpuinfo)


@pytest.mark.parametrize(
    ("flags", "has_bf16", "name"),
    [
        ("avx2", False, "avx2"),
        ("avx2 avx512f avx512_vnni", False, "avx512f"),
        ("avx2 avx512f avx512_bf16", True, "avx512_bf16"),
        ("avx2 avx512f avx512_bf16 amx_bf16", True, "amx_bf16"),
    ],
)
def test_float32_is_measured_where_the_processor_has_no_bf16(
    monkeypatch: pytest.MonkeyPatch, flags: str, has_bf16: bool, name: str
) -> None:
    processor_with(monkeypatch, flags)
    assert report.multiplies_bf16() is has_bf16
    assert report.processor() == f"A processor ({name})"
    for names in (default_peers(), default_systems()):
        assert "vllm" in names
        assert ("vllm-float32" in names) is not has_bf16


def test_vllm_is_told_its_type_and_shares_one_environment(cache: Path) -> None:
    launches = [launch(name, "tiny", cache) for name in ("vllm", "vllm-float32")]
    assert [one.options for one in launches] == [{"dtype": "bfloat16"}, {"dtype": "float32"}]
    assert launches[0].command == launches[1].command


def test_each_llama_cpp_gets_its_own_weights(cache: Path) -> None:
    folder = cache / "llamacpp-models"
    folder.mkdir()
    for kind in ("q8_0", "q4_0"):
        (folder / f"tiny-{kind}.gguf").touch()
        assert launch(f"llamacpp-{kind}", "tiny", cache).model == folder / f"tiny-{kind}.gguf"


def test_a_missing_file_is_named_with_the_command_that_writes_it(
    cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(PeerMissing, match=r"tiny-q4_0\.gguf.*install.py llamacpp"):
        launch("llamacpp-q4_0", "tiny", cache)
    assert list(available(["llamacpp-q4_0", "vllm"], "tiny", cache)) == ["vllm"]
    assert "without llamacpp-q4_0" in capsys.readouterr().err


def test_only_the_int8_contender_quantises(cache: Path) -> None:
    weights = {name: launch(name, "tiny", cache).options["weights"] for name in catalog.OURS}
    assert weights.pop("quire-int8") == "int8"
    assert set(weights.values()) == {"auto"}
