"""What a command that runs scripts gives to each of them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks.scripts import Script, command_of, run_scripts, scripts_parser

SCRIPTS = {
    "one": Script("Fig. 1", ("jobs", "models"), ("--few",)),
    "other": Script("Fig. 2", (), (), "elsewhere"),
}


def arguments(*given: str, out: Path = Path("results")) -> object:
    made = scripts_parser("several", SCRIPTS)
    made.add_argument("--jobs", type=int)
    made.add_argument("--models", nargs="+")
    return made.parse_args(["--out", str(out), *given])


def test_a_script_is_given_the_options_that_it_takes_and_no_others() -> None:
    given = arguments("--quick", "--jobs", "2", "--models", "tiny", "small")
    folder = Path("benchmarks/mine")
    command = command_of(folder, "one", SCRIPTS["one"], given)
    assert command[1:] == [
        "benchmarks/mine/one.py", "--out", "results", "--quick", "--few",
        "--jobs", "2", "--models", "tiny", "small",
    ]  # fmt: skip
    assert command[0] == sys.executable
    other = command_of(folder, "other", SCRIPTS["other"], given)
    assert other[1:] == ["benchmarks/elsewhere/other.py", "--out", "results", "--quick"]
    without = command_of(folder, "one", SCRIPTS["one"], arguments())
    assert without[2:] == ["--out", "results"]


def test_a_script_that_fails_is_named_behind_the_others(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    for name, text in (("mine/one", "raise SystemExit(3)"), ("elsewhere/other", "")):
        path = tmp_path / f"{name}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"from pathlib import Path\nPath('{path}.ran').touch()\n{text}\n")
    with pytest.raises(SystemExit, match="failed: one"):
        run_scripts(folder, SCRIPTS, arguments(out=tmp_path))
    assert (tmp_path / "elsewhere/other.py.ran").exists()
