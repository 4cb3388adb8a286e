"""A program's errors as its owner sees them: of the terminal's own node, from a server that trusts
uploads, from its sandbox, and over HTTP. Always the program's own lines, never the node's."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

PROGRAM = '''
from quire.programs.sdk import Context, inferlet


def halve(text):
    return int(text) // 2


@inferlet()
async def broken(api, kind, number):
    """Fail in its own way."""
    if kind == "own":
        return halve(number)
    if kind == "group":
        import asyncio
        async with asyncio.TaskGroup() as group:
            group.create_task(later(number))
    ctx = Context(api).fill("Hello")
    await ctx.generate_until(max_tokens=4)
    ctx.truncate(int(number))


async def later(number):
    return halve(number)
'''

CASES = [
    ("own", "many", ["in broken", "in halve", "ValueError: invalid literal for int()"]),
    ("group", "few", ["in broken", "in later", "in halve", "ValueError: invalid literal"]),
    ("api", "99", ["in broken", "ctx.truncate(int(number))", "InvalidArgument: truncate to 99"]),
]
WAYS = pytest.mark.parametrize("way", ["native", "uploaded", "sandboxed"])
OWN = {"native": "broken.py", "uploaded": "broken.py", "sandboxed": "uploaded.py"}
"""A file that is sent along has its own name; one that was pushed before has none here."""


def lines_of_others(text: str, own: str) -> list[str]:
    """Files named in a traceback that are not the program's."""
    return [file for file in re.findall(r'File "([^"]+)"', text) if Path(file).name != own]


def quire(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "quire.cli", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


@WAYS
@pytest.mark.parametrize(("kind", "number", "shown"), CASES, ids=[case[0] for case in CASES])
def test_the_terminal_shows_the_programs_own_lines(
    way: str, kind: str, number: str, shown: list[str], tmp_path: Path, shipped_server: str
) -> None:
    (tmp_path / "broken.py").write_text(PROGRAM, encoding="utf-8")
    url = () if way == "native" else ("--url", shipped_server)
    name = "broken.py"
    if way == "sandboxed":  # a file is trusted by this server, what was pushed never is
        assert quire(tmp_path, "push", name, *url).returncode == 0
        name = "broken"
    ran = quire(tmp_path, "run", name, *url, "--", kind, number)
    assert ran.returncode == 1, ran.stderr
    assert all(part in ran.stderr for part in shown), ran.stderr
    assert f'{OWN[way]}", line' in ran.stderr
    assert lines_of_others(ran.stderr, OWN[way]) == []


@WAYS
def test_a_file_that_cannot_be_imported_shows_where(
    way: str, tmp_path: Path, shipped_server: str
) -> None:
    (tmp_path / "broken.py").write_text("first = 1\nsecond = first / 0\n", encoding="utf-8")
    url = () if way == "native" else ("--url", shipped_server)
    ran = quire(tmp_path, "push" if way == "sandboxed" else "run", "broken.py", *url)
    assert ran.returncode == 2, ran.stderr
    assert "line 2" in ran.stderr
    assert "second = first / 0" in ran.stderr
    assert "ZeroDivisionError: division by zero" in ran.stderr
    assert lines_of_others(ran.stderr, "broken.py") == []


def test_http_tells_the_same(tmp_path: Path, shipped_server: str) -> None:
    (tmp_path / "broken.py").write_text(PROGRAM, encoding="utf-8")
    ran = quire(tmp_path, "run", "broken.py", "--url", shipped_server, "--", "own", "http")
    assert ran.returncode == 1
    with httpx.Client(base_url=shipped_server, timeout=120) as client:
        programs = client.get("/v1/programs").json()["data"]
        (launched,) = (one for one in programs if one.get("args") == ["own", "http"])
        record = client.get(f"/v1/programs/{launched['id']}").json()
        log = client.get(f"/v1/programs/{launched['id']}/logs").json()["data"]
    assert record["state"] == "failed"
    told = record["error"]["message"]
    for text in (told, "\n".join(line["text"] for line in log)):
        assert "in halve" in text
        assert "invalid literal for int() with base 10: 'http'" in text
        assert lines_of_others(text, "uploaded.py") == []
