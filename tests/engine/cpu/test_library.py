"""Which kernel library is chosen, and the message when one cannot be used."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from quire.core.errors import ConfigError
from quire.engine.cpu import library
from quire.engine.cpu.library import FOLDER, INSTRUCTION_SETS, kernel_report, load_kernel

needs_kernel = pytest.mark.skipif(
    kernel_report().chosen is None, reason="the kernel was not built on this machine"
)


def problem_of(isa: str, folder: Path) -> str | None:
    return next(state.problem for state in kernel_report(folder).states if state.isa == isa)


def test_the_version_is_the_headers() -> None:
    header = (FOLDER / "csrc" / "abi.h").read_text(encoding="utf-8")
    found = re.search(r"kAbiVersion = (\d+)", header)
    assert found is not None
    assert int(found[1]) == library.ABI_VERSION


@needs_kernel
def test_the_best_usable_set_is_chosen_and_loaded() -> None:
    report = kernel_report()
    usable = [state.isa for state in report.states if state.problem is None]
    assert [state.isa for state in report.states] == list(INSTRUCTION_SETS)
    assert "portable" in usable
    assert report.chosen == usable[0]
    assert load_kernel().isa == report.chosen


@needs_kernel
def test_each_usable_library_was_compiled_for_its_name() -> None:
    for state in kernel_report().states:
        if state.problem is None:
            kernel = load_kernel(state.isa)
            kernel.declare({"quire_isa": (library.ctypes.c_char_p, ())})
            assert kernel.native.quire_isa().decode() == state.isa


def test_an_empty_folder_names_the_remedy(tmp_path: Path) -> None:
    report = kernel_report(tmp_path)
    assert report.chosen is None
    assert report.fallback_reason() == "the CPU kernel cannot be used: it was not built"
    with pytest.raises(ConfigError, match=r"not built.*install a C\+\+ compiler.*backend torch"):
        load_kernel(folder=tmp_path)


def test_the_build_record_is_the_reason(tmp_path: Path) -> None:
    record = {"compiler": "cc 1.0", "failures": {"amx": "error: unrecognized option '-mamx-tile'"}}
    (tmp_path / "_kernel_build.json").write_text(json.dumps(record), encoding="utf-8")
    report = kernel_report(tmp_path)
    assert report.compiler == "cc 1.0"
    assert problem_of("amx", tmp_path) == "error: unrecognized option '-mamx-tile'"
    assert "amx: error: unrecognized" in report.fallback_reason()
    assert "avx2: it was not built" in report.fallback_reason()


def test_a_file_that_is_no_library(tmp_path: Path) -> None:
    (tmp_path / "_kernel_portable.so").write_bytes(b"not a library")
    problem = problem_of("portable", tmp_path)
    assert problem is not None
    assert problem.startswith("_kernel_portable.so cannot be loaded")


@needs_kernel
def test_a_library_of_another_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "ABI_VERSION", 999)
    assert problem_of("portable", FOLDER) == (
        f"_kernel_portable.so has interface {header_version()}, this version of Quire needs 999"
    )
    with pytest.raises(ConfigError, match="needs 999"):
        load_kernel("portable")


def header_version() -> int:
    found = re.search(r"kAbiVersion = (\d+)", (FOLDER / "csrc" / "abi.h").read_text("utf-8"))
    assert found is not None
    return int(found[1])


@needs_kernel
def test_the_error_for_a_missing_instruction_set_names_the_built_ones(tmp_path: Path) -> None:
    shutil.copy(FOLDER / "_kernel_portable.so", tmp_path)
    assert load_kernel(folder=tmp_path).isa == "portable"
    with pytest.raises(ConfigError, match="avx2 cannot be used: it was not built; usable here: po"):
        load_kernel("avx2", tmp_path)


def test_an_unknown_set() -> None:
    if kernel_report().chosen is None:
        pytest.skip("the kernel was not built on this machine")
    with pytest.raises(ConfigError, match="'sve2': choose one of amx, avx512_bf16"):
        load_kernel("sve2")


@needs_kernel
def test_a_function_that_the_library_lacks() -> None:
    with pytest.raises(ConfigError, match="no function quire_nothing: it was built from other"):
        load_kernel("portable").declare({"quire_nothing": (None, ())})
