"""Uploaded programs over HTTP and the command line: push, list, launch, logs, forget."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest
from scripted_server import RunningServer, running_server

from quire.cli.app import build_app
from quire.core.config import SandboxConfig, ServerConfig, TenantConfig
from quire.core.ids import TenantId

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(400),  # the first one builds the component
    pytest.mark.skipif(
        find_spec("wasmtime") is None or find_spec("componentize_py") is None,
        reason="the extra 'sandbox' is not installed (wasmtime, componentize-py)",
    ),
]

MINE = {"authorization": "Bearer my-key"}
THEIRS = {"authorization": "Bearer their-key"}
RUN = uuid4().hex  # what is uploaded lies beside the shared cache: test processes keep apart
TENANTS = (
    TenantConfig(TenantId(f"me-{RUN}"), ("my-key",)),
    TenantConfig(TenantId(f"them-{RUN}"), ("their-key",)),
)
SOURCE = '''
from quire.programs.sdk import inferlet


@inferlet("shouter", hosts=["example.org"])
async def main(api, text):
    """Says it louder.

    The rest is for those who read on.
    """
    print("shouting", text)
    await api.send(text.upper())
    return len(text)
'''


@pytest.fixture(scope="module")
def sandboxed(sandbox_cache: Path) -> Iterator[RunningServer]:
    config = SandboxConfig(cache_dir=sandbox_cache, num_warm=1, max_upload_bytes=1 << 16)
    server = ServerConfig(drain_timeout_s=1.0)
    with running_server(server, TENANTS, sandbox=config) as running:
        yield running


@pytest.fixture
def mine(sandboxed: RunningServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=sandboxed.url, timeout=600, headers=MINE) as http:
        yield http
        for upload in http.get("/v1/programs/uploads").json()["data"]:
            http.delete(f"/v1/programs/uploads/{upload['id']}").raise_for_status()


def push(http: httpx.Client, source: str = SOURCE) -> dict[str, Any]:
    response = http.post("/v1/programs/uploads", json={"source": source})
    assert response.status_code == 201, response.text
    pushed: dict[str, Any] = response.json()
    return pushed


def ended(http: httpx.Client, program: str) -> dict[str, Any]:
    http.get(f"/v1/programs/{program}/events").raise_for_status()  # whose stream ends with it
    found: dict[str, Any] = http.get(f"/v1/programs/{program}").json()
    assert found["ended"] is not None
    return found


def test_a_pushed_program_is_launched_by_name_and_by_hash(mine: httpx.Client) -> None:
    pushed = push(mine)
    assert pushed["name"] == "shouter"
    assert pushed["kind"] == "python"
    assert pushed["hosts"] == ["example.org"]
    for name in ("shouter", pushed["id"], pushed["id"][:8]):
        launched = mine.post("/v1/programs", json={"program": name, "args": ["hey"]})
        assert launched.status_code == 201, launched.text
        found = ended(mine, launched.json()["id"])
        assert (found["state"], found["result"], found["num_messages"]) == ("finished", 3, 1)
        lines = mine.get(f"/v1/programs/{found['id']}/logs").json()["data"]
        assert "shouting hey" in [line["text"] for line in lines]


def test_a_program_of_several_files_is_pushed_and_runs(mine: httpx.Client) -> None:
    files = {
        "main.py": SOURCE.replace(
            "return len(text)", "from tools.late import fail; return words(text) or fail()"
        ).replace("from quire", "from tools.counting import words\nfrom quire", 1),
        "tools/counting.py": "def words(text):\n    return len(text.split())\n",
        "tools/late.py": "def fail():\n    raise ValueError('no words')\n",
    }
    response = mine.post("/v1/programs/uploads", json={"files": files})
    assert response.status_code == 201, response.text
    pushed = response.json()
    assert (pushed["name"], pushed["kind"]) == ("shouter", "package")
    launched = mine.post("/v1/programs", json={"program": "shouter", "args": ["one two"]})
    assert ended(mine, launched.json()["id"])["result"] == 2
    failing = mine.post("/v1/programs", json={"files": files, "args": [" "]})
    error = ended(mine, failing.json()["id"])["error"]["message"]
    assert "uploaded.py/tools/late.py" in error
    assert "raise ValueError('no words')" in error


def test_the_same_code_is_the_same_program(mine: httpx.Client) -> None:
    first, again = push(mine), push(mine)
    assert first["id"] == again["id"]
    other = push(mine, SOURCE.replace("upper", "title"))
    assert other["id"] != first["id"]
    listed = mine.get("/v1/programs/uploads").json()["data"]
    assert [entry["id"] for entry in listed] == [other["id"], first["id"]]
    mine.delete(f"/v1/programs/uploads/{other['id']}").raise_for_status()
    assert len(mine.get("/v1/programs/uploads").json()["data"]) == 1


def test_uploads_are_their_tenants_own(sandboxed: RunningServer, mine: httpx.Client) -> None:
    pushed = push(mine)
    with httpx.Client(base_url=sandboxed.url, timeout=60, headers=THEIRS) as theirs:
        assert theirs.get("/v1/programs/uploads").json()["data"] == []
        for name in ("shouter", pushed["id"]):
            launched = theirs.post("/v1/programs", json={"program": name})
            assert launched.status_code == 404
            assert theirs.delete(f"/v1/programs/uploads/{name}").status_code == 404


def test_source_in_the_launch_itself_runs_in_the_sandbox(mine: httpx.Client) -> None:
    source = SOURCE.replace("return len(text)", "import sys; return sys.platform")
    launched = mine.post("/v1/programs", json={"source": source, "args": ["x"]}).json()
    assert ended(mine, launched["id"])["result"] == "wasi"


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({"source": "x = 1"}, 400, "0 @inferlet entries"),
        ({"source": "#" * (1 << 17)}, 400, "at most 65536 are taken"),
        ({"module": "not base64!"}, 400, "not base64"),
        ({"module": "AAAA"}, 400, "the module begins with 000000"),
        ({"module": "AAAA", "source": "x"}, 400, "one of source, files and module"),
        ({"files": {"main.py": SOURCE}, "source": "x"}, 400, "one of source, files and module"),
        ({}, 400, "one of source, files and module"),
        ({"files": {}}, 400, "it has no files: add main.py"),
        ({"files": {"main.py": SOURCE, "../a.py": ""}}, 400, "is not a module path"),
        ({"files": {"main.py": SOURCE, "json.py": ""}}, 400, "would hide the module 'json'"),
        ({"files": {"main.py": "#" * (1 << 16)}}, 400, "at most 65536 are taken"),
        ({"files": {"main.py": "import nowhere"}}, 400, "No module named 'nowhere'"),
    ],
)
def test_what_is_no_program_is_refused(
    mine: httpx.Client, body: dict[str, Any], status: int, words: str
) -> None:
    response = mine.post("/v1/programs/uploads", json=body)
    assert response.status_code == status
    assert words in response.json()["error"]["message"]


def test_the_command_line_has_the_same_verbs(
    sandboxed: RunningServer,
    mine: httpx.Client,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = tmp_path / "shouter.py"
    file.write_text(SOURCE, "utf-8")
    at = ("--url", sandboxed.url, "--api-key", "my-key")

    def quire(*words: str) -> str:
        build_app()([*words, *at], standalone_mode=False)
        return capsys.readouterr().out

    assert quire("push", str(file)).startswith("shouter ")
    assert "Says it louder." in quire("push")
    for program in ("shouter", str(file)):
        build_app()(["run", program, *at, "--", "hey"], standalone_mode=False)
        assert capsys.readouterr().out.splitlines() == ["HEY", "3"]
    program = mine.get("/v1/programs").json()["data"][-1]["id"]
    assert "shouting hey" in quire("logs", program)
    quire("push", "--delete", "shouter")
    assert "shouter" not in quire("push")
