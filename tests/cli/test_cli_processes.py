"""``ps``, ``attach``, ``logs``, ``kill`` and ``run --url`` against a running node."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from types import SimpleNamespace

import httpx
import pytest
from cli_invoke import invoke

from quire.cli import console
from quire.cli.client import NodeClient
from quire.core.errors import UnknownHandle

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

Capture = pytest.CaptureFixture[str]

WAITER = """
from quire.core.errors import MailboxClosed
from quire.programs.sdk import inferlet

@inferlet("waiter")
async def wait(api, *args):
    await api.send("ready " + " ".join(args))
    count = 0
    try:
        while True:
            await api.send((await api.receive()).upper())
            count += 1
    except MailboxClosed:
        return {"lines": count}
"""


@pytest.fixture
def node(shipped_server: str) -> Iterator[NodeClient]:
    with NodeClient(shipped_server) as client:
        yield client


@pytest.fixture
def waiter(node: NodeClient) -> Iterator[str]:
    """The id of a program that waits for messages."""
    public_id = str(node.launch({"source": WAITER, "args": ["for", "you"]})["id"])
    yield public_id
    node.terminate(public_id)


def test_ps_lists_programs_with_short_ids(capsys: Capture, node: NodeClient, waiter: str) -> None:
    ran = invoke(capsys, "ps", "--url", node.url)
    (line,) = (line for line in ran.out.splitlines() if waiter[:12] in line)
    assert waiter not in line
    assert "waiter" in line
    assert "inferlet" in line
    assert waiter in invoke(capsys, "ps", "--long", "--url", node.url).out


def test_ps_filters_and_tells_in_json(capsys: Capture, node: NodeClient, waiter: str) -> None:
    ran = invoke(
        capsys, "ps", "--json", "--state", "running", "--name", "waiter", "--url", node.url
    )
    records = json.loads(ran.out)
    assert waiter in [one["id"] for one in records]
    assert {(one["state"], one["name"]) for one in records} == {("running", "waiter")}
    assert invoke(capsys, "ps", "--json", "--name", "nobody", "--url", node.url).out == "[]\n"
    assert invoke(capsys, "ps", "--json", "--watch", "--url", node.url).code == 2


def test_a_log_is_followed_to_the_programs_end(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, node: NodeClient, waiter: str
) -> None:
    """Between two looks the program is ended: what that has put into the log is shown, once."""
    looks = iter([lambda: node.terminate(waiter)])  # it may take several until it has ended
    clock = SimpleNamespace(sleep=lambda _: next(looks, lambda: time.sleep(0.01))())
    monkeypatch.setattr("quire.cli.logs.time", clock)
    ran = invoke(capsys, "logs", waiter, "--follow", "--url", node.url)
    assert ran.out.count("launched with 2 arguments") == 1
    assert ran.out.count("warning cancel: ") == 1


def test_attach_shows_messages_and_sends_lines(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, node: NodeClient, waiter: str
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("one\ntwo\n"))
    ran = invoke(capsys, "attach", waiter[:14], "--interactive", "--url", node.url)
    assert ran.code == 0
    assert ran.out == 'ready for you\nONE\nTWO\n{\n  "lines": 2\n}\n'


def test_the_end_of_stdin_may_leave_the_input_open(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, node: NodeClient, waiter: str
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("one\n"))
    was_shown = Event()

    def show(text: str) -> None:
        print(text)
        if text == "ONE":
            was_shown.set()

    def another_client() -> None:
        assert was_shown.wait(60)
        with node.another() as other:
            other.signal(waiter, "message", "two")
            other.signal(waiter, "end_of_input")

    monkeypatch.setattr(console, "show_message", show)
    with ThreadPoolExecutor(1) as pool:
        going_on = pool.submit(another_client)
        ran = invoke(capsys, "attach", waiter, "-i", "--keep-open", "--url", node.url)
        going_on.result(60)
    assert ran.out == 'ready for you\nONE\nTWO\n{\n  "lines": 2\n}\n'
    alone = invoke(capsys, "attach", waiter, "--keep-open", "--url", node.url)
    assert (alone.code, "--interactive" in alone.err) == (2, True)


def test_a_detached_program_goes_on_and_takes_lines_later(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, node: NodeClient, tmp_path: Path
) -> None:
    path = tmp_path / "waiter.py"
    path.write_text(WAITER, encoding="utf-8")
    ran = invoke(
        capsys, "run", str(path), "--url", node.url, "-d", "--seed", "7", "--", "for", "you"
    )
    public_id = ran.out.strip()
    record = next(one for one in node.programs() if one["id"] == public_id)
    assert record["seed"] == 7
    assert record["ended"] is None
    monkeypatch.setattr("sys.stdin", io.StringIO("one\n"))
    attached = invoke(capsys, "attach", public_id, "-i", "--url", node.url)
    assert attached.out == 'ready for you\nONE\n{\n  "lines": 1\n}\n'


def test_a_folder_is_run_there_by_its_bare_name(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, node: NodeClient, tmp_path: Path
) -> None:
    (tmp_path / "waiting").mkdir()
    (tmp_path / "waiting" / "main.py").write_text(WAITER, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.stdin", io.StringIO("one\n"))
    ran = invoke(capsys, "run", "waiting", "-i", "--url", node.url, "--", "for", "you")
    assert (ran.out, ran.code) == ('ready for you\nONE\n{\n  "lines": 1\n}\n', 0), ran.err


def test_help_of_a_file_is_shown_although_a_node_is_named(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, node: NodeClient, tmp_path: Path
) -> None:
    path = tmp_path / "waiter.py"
    path.write_text(WAITER, encoding="utf-8")
    monkeypatch.setenv("QUIRE_URL", node.url)
    ran = invoke(capsys, "run", str(path), "--", "--help")
    assert (ran.code, ran.err) == (0, "")
    assert f"usage: quire run {path} -- [ARGS ...]" in ran.out
    unknown = invoke(capsys, "run", "nobody", "--", "--help")
    assert (unknown.code, "quire push FILE" in unknown.err) == (2, True)


def test_what_detached_cannot_do_is_refused(capsys: Capture, node: NodeClient) -> None:
    ran = invoke(capsys, "run", "react", "--detach")
    assert (ran.code, "--url" in ran.err) == (2, True)
    ran = invoke(capsys, "run", "react", "--detach", "--interactive", "--url", node.url)
    assert (ran.code, "quire attach" in ran.err) == (2, True)


def test_logs_say_what_happened(capsys: Capture, node: NodeClient, waiter: str) -> None:
    node.terminate(waiter)
    ran = invoke(capsys, "logs", waiter, "--url", node.url)
    assert "launched with 2 arguments" in ran.out
    assert "cancel: cancelled by its owner" in ran.out


def test_kill_ends_a_program(capsys: Capture, node: NodeClient, waiter: str) -> None:
    ran = invoke(capsys, "kill", waiter, "--url", node.url)
    assert ran.out == f"cancelled {waiter}\n"
    attached = invoke(capsys, "attach", waiter, "--url", node.url)
    assert attached.code == 130  # as 'quire run' ends whose program was cancelled
    assert "error:" in attached.err


def test_kill_and_ps_have_the_same_word_for_it(
    capsys: Capture, node: NodeClient, waiter: str
) -> None:
    invoke(capsys, "kill", waiter, "--url", node.url)
    assert invoke(capsys, "attach", waiter, "--url", node.url).code != 0  # until it has ended
    assert node.program(waiter)["state"] == "cancelled"
    again = invoke(capsys, "kill", waiter, "--url", node.url)
    assert again.out == f"{waiter} had ended before: cancelled\n"


def test_kill_says_of_a_program_that_had_ended_how_it_ended(
    capsys: Capture, node: NodeClient
) -> None:
    request = {"program": "text_completion", "args": ["Hello,", "1"], "wait": True}
    ended = node.launch(request)["id"]
    ran = invoke(capsys, "kill", ended, "--url", node.url)
    assert ran.out == f"{ended} had ended before: finished\n"


def test_kill_ends_a_session_that_ps_lists(capsys: Capture, node: NodeClient) -> None:
    made = httpx.post(f"{node.url}/v1/sessions", json={"id": "to-end"}).json()["program"]
    for command in ("attach", "logs"):
        ran = invoke(capsys, command, made, "--url", node.url)
        assert (ran.code, "is a session" in ran.err) == (2, True)
    ran = invoke(capsys, "kill", made, "--url", node.url)
    assert (ran.code, ran.out) == (0, f"ended the session {made}\n")
    assert made not in [one["id"] for one in node.programs()]


def test_an_unknown_program_is_a_clear_error(capsys: Capture, node: NodeClient) -> None:
    for command in ("attach", "logs", "kill"):
        ran = invoke(capsys, command, "prog-nothing", "--url", node.url)
        assert ran.code == 2
        assert "quire ps" in ran.err


def test_an_ambiguous_id_is_refused(node: NodeClient, waiter: str) -> None:
    second = str(node.launch({"source": WAITER})["id"])
    with pytest.raises(UnknownHandle, match="write more"):
        node.full_id("prog-")
    assert node.full_id(second) == second
    node.terminate(second)


def test_run_uploads_a_file(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, node: NodeClient, tmp_path: Path
) -> None:
    path = tmp_path / "waiter.py"
    path.write_text(WAITER, encoding="utf-8")
    monkeypatch.setattr("sys.stdin", io.StringIO("hello\n"))
    ran = invoke(capsys, "run", str(path), "--url", node.url, "-i", "--", "all", "of", "you")
    assert ran.code == 0
    assert ran.out == 'ready all of you\nHELLO\n{\n  "lines": 1\n}\n'


def test_run_without_interactive_input_ends_the_programs_input(
    capsys: Capture, node: NodeClient, tmp_path: Path
) -> None:
    path = tmp_path / "waiter.py"
    path.write_text(WAITER, encoding="utf-8")
    ran = invoke(capsys, "run", str(path), "--url", node.url)
    assert ran.out == 'ready \n{\n  "lines": 0\n}\n'


def test_run_of_a_failing_program_ends_with_status_1(
    capsys: Capture, node: NodeClient, tmp_path: Path
) -> None:
    path = tmp_path / "failing.py"
    path.write_text(
        "from quire.programs.sdk import inferlet\n\n@inferlet()\nasync def fail(api):\n    1 / 0\n",
        encoding="utf-8",
    )
    ran = invoke(capsys, "run", str(path), "--url", node.url)
    assert ran.code == 1
    assert "ZeroDivisionError" in ran.err
    assert "line 5, in fail" in ran.err


def test_attach_to_a_failing_program_ends_with_status_1(
    capsys: Capture, node: NodeClient, tmp_path: Path
) -> None:
    path = tmp_path / "failing.py"
    path.write_text(
        "from quire.programs.sdk import inferlet\n\n@inferlet()\nasync def fail(api):\n    1 / 0\n",
        encoding="utf-8",
    )
    failing = invoke(capsys, "run", str(path), "--detach", "--url", node.url).out.strip()
    attached = invoke(capsys, "attach", failing, "--url", node.url)
    assert attached.code == 1
    assert "ZeroDivisionError" in attached.err


def test_run_of_a_library_program(capsys: Capture, node: NodeClient) -> None:
    ran = invoke(capsys, "run", "react", "--url", node.url, "--", "What is 17*23?")
    assert ran.code == 0
    assert "calc(17*23)" in ran.out
    assert "391" in ran.out


def test_models_of_a_node(capsys: Capture, node: NodeClient) -> None:
    ran = invoke(capsys, "models", "--url", f"{node.url}/v1")
    assert "quire-mini" in ran.out
    assert "2048" in ran.out
