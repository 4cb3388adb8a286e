"""``quire workflow run --id``: after SIGKILL nothing that has ended is repeated."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest
from cli_invoke import invoke

APP = """
import os
import time
from pathlib import Path

from quire.programs.workflow import App, Engine, Growth, Node

FOLDER = Path(__file__).parent


def note(text):
    with open(FOLDER / "calls", "a") as calls:
        calls.write(text + "\\n")


def look_up(name):
    note(f"look up {name}")
    return f"What is 2 and 3? Ask {name}."


def step(said):
    note("step")
    return Growth([Node("tool", {"said": "text"}, {"more": "text"}, None,
                        {"function": "lengthen"}, name="lengthen"),
                   Node("tool", {"more": "text"}, {"answer": "text"}, None,
                        {"function": "last", "pure": True}, name="last")])


def lengthen(said):
    note("lengthen")
    return said + "!"


def last(more):
    note("last")
    if not (FOLDER / "go").exists():
        (FOLDER / "reached").touch()
        time.sleep(600)
    return more + "!"


app = App("mine", [
    Engine("tool", config={"functions": {"look_up": look_up, "lengthen": lengthen, "last": last}}),
    Engine("llm"),
    Engine("growth", config={"functions": {"step": step}}),
])
app.update_template([
    Node("tool", {"name": "text"}, {"asked": "text"}, None, {"function": "look_up"},
         name="look_up"),
    Node("llm", {"asked": "text"}, {"said": "text"}, None,
         {"prompt": "{asked}", "max_tokens": 8}, name="ask"),
    Node("growth", {"said": "text"}, {"answer": "text"}, None, {"function": "step"}, name="grow"),
])
"""


async def start(folder: Path, *options: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "quire.cli", "workflow", "run", f"{folder / 'mine.py'}:app",
        "--data-dir", str(folder / "kept"), *options,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, start_new_session=True,
    )  # fmt: skip


async def written(path: Path, process: asyncio.subprocess.Process) -> None:
    while not path.exists():  # noqa: ASYNC240
        assert process.returncode is None, await process.communicate()
        await asyncio.sleep(0.05)


@pytest.mark.e2e
async def test_a_node_that_is_killed_repeats_nothing_that_has_ended(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(APP, encoding="utf-8")
    calls = tmp_path / "calls"
    first = await start(tmp_path, "--id", "q", "--input", "name=Lin")
    await written(tmp_path / "reached", first)
    os.killpg(first.pid, signal.SIGKILL)  # the node with its engine
    await first.wait()
    assert calls.read_text().split("\n")[:-1] == ["look up Lin", "step", "lengthen", "last"]

    (tmp_path / "go").touch()
    second = await start(tmp_path, "--resume", "q")
    out, said = await second.communicate()
    assert second.returncode == 0, said
    assert "4 of 6 primitives were there" in said.decode()
    assert calls.read_text().split("\n")[4:-1] == ["last"]
    assert out.decode().strip().endswith("!!")

    third = await start(tmp_path, "--id", "q", "--input", "name=Lin")
    again, said = await third.communicate()
    assert (third.returncode, again) == (0, out), said
    assert "6 of 6 primitives were there" in said.decode()
    assert len(calls.read_text().split("\n")) == 6


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--id", "a", "--resume", "b"), "two queries: give one"),
        (("--repeat-interrupted",), "is for a query with an --id"),
        (("--id", "a", "--url", "http://127.0.0.1:1", "--data-dir", "x"), "--data-dir is for a"),
    ],
)
def test_what_does_not_fit_is_refused(
    capsys: pytest.CaptureFixture[str], options: tuple[str, ...], message: str
) -> None:
    ran = invoke(capsys, "workflow", "run", "agent", "--question", "Why?", *options)
    assert ran.code != 0
    assert message in " ".join(ran.err.split())
