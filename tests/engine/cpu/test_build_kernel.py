"""``setup.py``: what it recompiles, and what it leaves if no compiler works."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import setuptools

ROOT = Path(__file__).parents[3]


@pytest.fixture
def build(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """``setup.py`` as a module, without running it; its objects are made under ``tmp_path``."""
    monkeypatch.setattr(setuptools, "setup", lambda **options: None)
    spec = importlib.util.spec_from_file_location("quire_setup", ROOT / "setup.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "OBJECTS", tmp_path / "temp")
    return module


def command(build: Any, tmp_path: Path) -> Any:
    """The build command with its outputs under ``tmp_path``."""
    extension = setuptools.Extension("quire.engine.cpu._kernel_portable", [], optional=True)
    made = build.BuildKernel(setuptools.Distribution({"ext_modules": [extension]}))
    made.build_lib = str(tmp_path / "lib")
    made.ensure_finalized()
    return made


def record_of(made: Any) -> dict[str, Any]:
    text = (Path(made.folder) / "_kernel_build.json").read_text(encoding="utf-8")
    record: dict[str, Any] = json.loads(text)
    return record


def test_without_a_compiler_the_record_says_so(
    build: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "find_compiler", list)
    made = command(build, tmp_path)
    made.build_extensions()
    record = record_of(made)
    assert record["compiler"] is None
    assert set(record["failures"]) == set(build.instruction_sets())
    assert "no C++ compiler was found" in record["failures"]["portable"]
    assert not list(Path(made.folder).glob("*.so"))


def test_a_compiler_that_fails_is_no_failed_install(
    build: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = tmp_path / "cxx"
    compiler.write_text("#!/bin/sh\necho 'cxx: error: no such option'; exit 1\n", encoding="utf-8")
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    made = command(build, tmp_path)
    made.build_extensions()
    failures = record_of(made)["failures"]
    assert set(failures) == set(build.instruction_sets())
    assert failures["portable"] == "cxx: error: no such option"


def test_the_environment_chooses_the_compiler(build: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "ccache g++")
    assert build.find_compiler() == ["ccache", "g++"]
    monkeypatch.delenv("CXX")
    monkeypatch.setattr(shutil, "which", lambda name: name == "clang++" or None)
    assert build.find_compiler() == ["clang++"]


def library_that_records(
    build: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, while_compiling: Any = None
) -> tuple[Any, list[str]]:
    """A library whose compiler only records its arguments."""
    compiled: list[str] = []

    def fake_run(arguments: list[str]) -> None:
        compiled.append(arguments[-3])
        if while_compiling is not None:
            while_compiling()
        Path(arguments[-1]).touch()

    monkeypatch.setattr(build, "run", fake_run)
    objects, target = tmp_path / "objects", tmp_path / "lib.so"
    library = build.Library(["c++"], "c++ 12", "portable", [], objects, target)
    return library, compiled


def test_only_what_changed_is_compiled_again(
    build: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library, compiled = library_that_records(build, tmp_path, monkeypatch)
    source = tmp_path / "a.cpp"
    source.write_text("int x;", encoding="utf-8")
    library.compile(source, b"header")
    library.compile(source, b"header")
    assert compiled == [str(source)]
    library.compile(source, b"another header")
    assert len(compiled) == 2
    source.write_text("int y;", encoding="utf-8")
    os.utime(source, (0, 0))  # older than the object, as after a checkout
    library.compile(source, b"another header")
    assert len(compiled) == 3
    library.flags.append("-g")
    library.compile(source, b"another header")
    assert len(compiled) == 4
    library.version = "c++ 13"
    library.compile(source, b"another header")
    assert len(compiled) == 5


def test_a_source_edited_while_it_compiles_is_compiled_again(
    build: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "a.cpp"
    source.write_text("int x;", encoding="utf-8")
    library, compiled = library_that_records(
        build, tmp_path, monkeypatch, lambda: source.write_text("int y;", encoding="utf-8")
    )
    library.compile(source, b"")
    library.compile(source, b"")
    assert len(compiled) == 2


def commands_for(
    build: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_sources: int, fails: str = ""
) -> list[list[str]]:
    """The compiler's arguments to build a library of ``num_sources``, all new, and the first begun
    by a pragma; a command with ``fails`` among its arguments fails."""
    sources = tmp_path / "csrc"
    sources.mkdir()
    for number in range(num_sources):
        first = "#pragma x" if number == 0 else "// One."
        text = f'{first}\n#include "{number}.h"\n'
        (sources / f"{number}.cpp").write_text(text, encoding="utf-8")
    commands: list[list[str]] = []

    def fake_run(arguments: list[str]) -> None:
        commands.append(arguments)
        if fails in arguments:
            raise build.CompileError("error: no such option")
        Path(arguments[-1]).touch()

    monkeypatch.setattr(build, "run", fake_run)
    monkeypatch.setattr(build, "SOURCES", sources)
    objects, target = tmp_path / "objects", tmp_path / "lib.so"
    assert build.build([build.Library(["c++"], "", "avx2", ["-mavx2"], objects, target)]) == {}
    assert not list(objects.rglob("*.gch"))
    return commands


def test_headers_are_parsed_once_for_many_sources(
    build: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    *compiled, _link = commands_for(build, tmp_path, monkeypatch, num_sources=build.MANY + 1)
    (ahead,) = (command for command in compiled if "-x" in command)
    others = [command for command in compiled if command is not ahead]
    header = tmp_path / "objects" / "avx2" / "prelude.h"
    assert ahead[ahead.index("-x") :][:3] == ["-x", "c++-header", str(header)]
    assert "#include <immintrin.h>" in header.read_text(encoding="utf-8")
    assert len(others) == build.MANY + 1
    without = [other for other in others if "-include" not in other]
    assert [Path(other[-3]).name for other in without] == ["0.cpp"]
    used = [other[other.index("-include") + 1] for other in others if other not in without]
    assert used == [str(header)] * build.MANY


def test_no_header_comes_before_a_pragma(build: Any) -> None:
    """Of this one too, where contracted products would give other tokens."""
    sources = ROOT / "src" / "quire" / "engine" / "cpu" / "csrc"
    assert not build.begins_with_headers(sources / "sampling.cpp")
    assert build.begins_with_headers(sources / "choice.cpp")


def test_a_few_sources_parse_their_headers_themselves(
    build: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands = commands_for(build, tmp_path, monkeypatch, num_sources=build.MANY)
    assert len(commands) == build.MANY + 1  # and the link
    assert not any("-include" in command or "-x" in command for command in commands)


def test_a_compiler_that_cannot_parse_them_ahead_compiles_without(
    build: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    num = build.MANY + 1
    commands = commands_for(build, tmp_path, monkeypatch, num, fails="c++-header")
    assert len(commands) == num + 2
    assert not any("-include" in command for command in commands)


def test_every_set_has_a_flag_of_its_own(build: Any) -> None:
    sets = build.instruction_sets()
    assert sets["portable"] == []
    assert len({tuple(flags) for flags in sets.values()}) == len(sets)


def test_the_installer_reports_the_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    import install

    monkeypatch.setattr(install, "ROOT", str(tmp_path))
    assert install.kernel_line().startswith("the CPU kernel was not built: ")
    folder = tmp_path / install.KERNEL
    folder.mkdir(parents=True)
    (folder / "_kernel_portable.so").touch()
    record = {"compiler": "cc", "failures": {"amx": "error: -mamx-tile"}}
    (folder / "_kernel_build.json").write_text(json.dumps(record), encoding="utf-8")
    line = install.kernel_line()
    assert line == "the CPU kernel was built for portable; not amx: error: -mamx-tile"
    sys.modules.pop("install")


def test_the_installer_installs_again_when_the_kernel_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    import install

    monkeypatch.setattr(install, "ROOT", str(tmp_path))
    for name in ("pyproject.toml", "setup.py"):
        (tmp_path / name).touch()
    folder = tmp_path / install.KERNEL / "csrc"
    folder.mkdir(parents=True)
    before = install.fingerprint([])
    (folder / "matmul.cpp").write_text("int x;", encoding="utf-8")
    after = install.fingerprint([])
    sys.modules.pop("install")
    assert before != after
