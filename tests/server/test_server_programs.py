"""Programs over HTTP and WebSocket: launch, look, send, end."""

from __future__ import annotations

import asyncio
import gc
import json
import linecache
import os
from collections.abc import Iterator
from pathlib import Path
from socket import create_connection
from typing import Any

import httpx
import pytest
from request_log import RequestLines
from scripted_server import RunningServer, running_server
from websockets.exceptions import InvalidStatus
from websockets.sync.client import ClientConnection, connect

from quire.core.config import ServerConfig
from quire.core.ids import TenantId
from quire.node.programs.uploads import UploadTable
from quire.programs.inferlet import Inferlet
from quire.programs.library import LIBRARY
from quire.programs.sandbox.program import GuestProgram
from quire.server.programs.upload import program_of
from quire.server.schemas.programs import LaunchRequest

ECHO = '''
from quire.core.errors import MailboxClosed
from quire.programs.inferlet import inferlet

@inferlet()
async def echo(api, *args):
    """Sends back what it gets, in capitals."""
    await api.send(f"ready {list(args)}")
    count = 0
    while True:
        try:
            message = await api.receive()
        except MailboxClosed:
            return {"count": count}
        await api.send(message.upper())
        count += 1
'''
RAISES = """
from quire.programs.inferlet import inferlet

@inferlet()
async def raises(api):
    raise ValueError("on purpose")
"""


@pytest.fixture(scope="module")
def trusting() -> Iterator[RunningServer]:
    with running_server(ServerConfig(allow_native_upload=True, drain_timeout_s=1.0)) as running:
        yield running


def listed(http: httpx.Client) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = http.get("/v1/programs").json()["data"]
    return entries


@pytest.fixture
def api(trusting: RunningServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=trusting.url, timeout=60) as http:
        yield http


def launch(http: httpx.Client, **body: Any) -> dict[str, Any]:
    response = http.post("/v1/programs", json=body)
    assert response.status_code == 201, response.text
    launched: dict[str, Any] = response.json()
    return launched


def attached(server: RunningServer, program: str, query: str = "") -> ClientConnection:
    return connect(f"ws://{server.host}:{server.port}/v1/programs/{program}/attach{query}")


def receive(socket: ClientConnection) -> dict[str, Any]:
    frame: dict[str, Any] = json.loads(socket.recv(timeout=60))
    return frame


def test_the_library_by_name(http: httpx.Client) -> None:
    entries = http.get("/v1/programs/library").json()["data"]
    assert [entry["name"] for entry in entries] == list(LIBRARY)
    completion = entries[0]
    assert (completion["name"], completion["theme"]) == ("text_completion", "completion")
    assert (
        completion["summary"] == "Continue a prompt, greedily, and stream the text to the client."
    )
    for entry in entries:
        told = " ".join(entry["description"].replace("``", "`").split())
        assert told.startswith(entry["summary"])


def test_a_workflow_is_launched_by_its_name(http: httpx.Client) -> None:
    query = {"question": "Who?", "documents": [{"name": "a.md", "text": "Kabo is a baker."}]}
    body = launch(http, program="naive-rag", named_args={"query": query}, wait=True)
    assert (body["form"], body["name"], body["state"]) == ("workflow", "naive-rag", "finished")
    assert body["result"].keys() == {"answer"}
    listed = http.get(f"/v1/programs/{body['id']}").json()
    assert listed["form"] == "workflow"


def test_a_library_program_runs_to_its_result(http: httpx.Client, server: RunningServer) -> None:
    fields = {"client_id": "mine", "priority": 3}
    launched = launch(http, program="text_completion", args=["say done"], **fields)
    assert launched["id"].startswith("prog-")
    assert launched["name"] == "text_completion"
    assert {field: launched[field] for field in fields} == fields
    with attached(server, launched["id"]) as socket:
        *_, last = (json.loads(frame) for frame in socket)
    assert last["type"] == "ended"
    assert last["program"]["state"] == "finished", last
    assert "done" in json.dumps(last["program"]["result"])
    record = http.get(f"/v1/programs/{launched['id']}").json()
    assert record["result"] == last["program"]["result"]
    assert record["ended"] >= record["created"]
    assert launched["id"] in [entry["id"] for entry in http.get("/v1/programs").json()["data"]]


def test_a_launch_that_waits_answers_with_the_result(http: httpx.Client) -> None:
    ended = launch(http, program="text_completion", args=["say done"], wait=True)
    assert ended["state"] == "finished"
    assert ended["result"] == http.get(f"/v1/programs/{ended['id']}").json()["result"]
    assert "done" in json.dumps(ended["result"])


def test_arguments_are_json_by_place_and_by_name(http: httpx.Client) -> None:
    ended = launch(
        http, program="text_completion", args=["say done"], named_args={"max_tokens": 3}, wait=True
    )
    assert (ended["args"], ended["named_args"]) == (["say done"], {"max_tokens": "3"})
    assert ended["state"] == "finished", ended
    body = {"program": "text_completion", "named_args": {"max_tokens": ["3"]}}
    refused = http.post("/v1/programs", json=body)
    assert refused.status_code == 400
    error = refused.json()["error"]
    assert error["param"] == "args"
    assert "argument max_tokens of program 'text_completion' is '[\"3\"]'" in error["message"]
    known = http.get("/v1/programs/library").json()["data"][0]["parameters"]
    assert [(one["name"], one["kind"], one["default"]) for one in known] == [
        ("prompt", "text", "Hello,"),
        ("max_tokens", "integer", "32"),
    ]


def test_a_launch_that_waits_tells_of_a_failure(api: httpx.Client) -> None:
    ended = launch(api, source=RAISES, wait=True)
    assert (ended["state"], ended["result"]) == ("failed", None)
    assert "on purpose" in ended["error"]["message"]


def test_who_leaves_a_launch_that_waits_ends_its_program(
    trusting: RunningServer, api: httpx.Client
) -> None:
    body = {"source": ECHO, "client_id": "left", "wait": True}
    impatient = httpx.Timeout(60, read=0.3)
    with (
        httpx.Client(base_url=trusting.url, timeout=impatient) as http,
        pytest.raises(httpx.ReadTimeout),
    ):
        http.post("/v1/programs", json=body)
    while not (left := [one for one in listed(api) if one["client_id"] == "left"]):
        pass  # it may still be on its way
    with attached(trusting, left[0]["id"]) as socket:
        *_, last = (json.loads(frame) for frame in socket)
    assert last["program"]["state"] == "cancelled"
    assert "has left" in last["program"]["error"]["message"]


def events(lines: Iterator[str]) -> Iterator[dict[str, Any]]:
    """Frames of a stream of events, up to [DONE]; an id is its message's number."""
    number = None
    for line in lines:
        if line.startswith("id: "):
            number = int(line.removeprefix("id: "))
        elif line == "data: [DONE]":
            return
        elif line.startswith("data: "):
            frame = json.loads(line.removeprefix("data: "))
            assert number == frame.get("sequence")
            number = None
            yield frame
    raise AssertionError("the stream has no end")


def test_a_launch_streams_messages_then_the_end(api: httpx.Client) -> None:
    body = {"source": ECHO, "args": ["a"], "stream": True}
    with api.stream("POST", "/v1/programs", json=body) as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        assert response.headers["x-accel-buffering"] == "no"
        frames = events(response.iter_lines())
        launched = next(frames)
        assert launched["type"] == "launched"
        assert next(frames) == {"type": "message", "sequence": 1, "text": "ready ['a']"}
        path = f"/v1/programs/{launched['program']['id']}"
        api.post(f"{path}/signal", json={"signal": "message", "message": "hello"})
        assert next(frames) == {"type": "message", "sequence": 2, "text": "HELLO"}
        api.post(f"{path}/signal", json={"signal": "end_of_input"})
        (last,) = frames
    assert (last["type"], last["program"]["result"]) == ("ended", {"count": 1})

    again = api.get(f"{path}/events", headers={"last-event-id": "1"})
    read_again = list(events(iter(again.text.splitlines())))
    assert [frame["type"] for frame in read_again] == ["message", "ended"]
    assert read_again == list(
        events(iter(api.get(f"{path}/events", params={"after": 1}).text.splitlines()))
    )


def test_a_launch_that_streams_tells_of_a_failure(api: httpx.Client) -> None:
    with api.stream("POST", "/v1/programs", json={"source": RAISES, "stream": True}) as response:
        *_, last = events(response.iter_lines())
    assert last["program"]["state"] == "failed"
    assert "on purpose" in last["program"]["error"]["message"]


def test_who_leaves_a_launch_that_streams_ends_its_program(
    trusting: RunningServer, api: httpx.Client
) -> None:
    with api.stream("POST", "/v1/programs", json={"source": ECHO, "stream": True}) as response:
        program = next(events(response.iter_lines()))["program"]["id"]
    with attached(trusting, program) as socket:
        *_, last = (json.loads(frame) for frame in socket)
    assert last["program"]["state"] == "cancelled"
    assert "has left" in last["program"]["error"]["message"]


def test_who_leaves_events_leaves_the_program_running(api: httpx.Client) -> None:
    program = launch(api, source=ECHO)["id"]
    with api.stream("GET", f"/v1/programs/{program}/events") as response:
        assert next(events(response.iter_lines()))["text"] == "ready []"
    api.post(f"/v1/programs/{program}/signal", json={"signal": "end_of_input"})
    *_, last = events(iter(api.get(f"/v1/programs/{program}/events").text.splitlines()))
    assert last["program"]["state"] == "finished"


@pytest.mark.parametrize("place", ["-1", "one", "1.5", "9" * 16])
def test_a_bad_last_event_id_is_400(api: httpx.Client, place: str) -> None:
    program = launch(api, source=ECHO)["id"]
    response = api.get(f"/v1/programs/{program}/events", headers={"last-event-id": place})
    assert response.status_code == 400
    assert place in response.json()["error"]["message"]
    api.delete(f"/v1/programs/{program}")


@pytest.mark.parametrize("name", ["none", "/etc/passwd", "../x.py", "tests/x.py"])
def test_other_names_are_404(http: httpx.Client, name: str) -> None:
    response = http.post("/v1/programs", json={"program": name})
    assert response.status_code == 404
    assert response.json()["error"]["code"] == "unknown_handle"


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"program": "react", "source": "x"},
        {"program": "react", "args": ["x"] * 65},
        {"program": "react", "args": {"question": "x"}},
        {"program": "react", "nonsense": 1},
    ],
)
def test_bad_launches_are_400(http: httpx.Client, body: dict[str, Any]) -> None:
    assert http.post("/v1/programs", json=body).status_code == 400


def test_a_server_without_a_sandbox_refuses_source(http: httpx.Client) -> None:
    response = http.post("/v1/programs", json={"source": ECHO})
    assert response.status_code == 403
    error = response.json()["error"]
    assert (error["code"], error["param"]) == ("forbidden", "source")
    assert "--no-sandbox" in error["message"]


def test_messages_both_ways_then_the_end(trusting: RunningServer, api: httpx.Client) -> None:
    program = launch(api, source=ECHO, args=["a", "b"])["id"]
    with attached(trusting, program) as socket:
        first = receive(socket)
        assert first == {"type": "message", "sequence": 1, "text": "ready ['a', 'b']"}
        socket.send(json.dumps({"type": "message", "text": "hello"}))
        assert receive(socket)["text"] == "HELLO"
        signal = {"signal": "message", "message": "by signal"}
        assert api.post(f"/v1/programs/{program}/signal", json=signal).status_code == 202
        assert receive(socket)["text"] == "BY SIGNAL"
        socket.send(json.dumps({"type": "end_of_input"}))
        ended = receive(socket)
    assert ended["type"] == "ended"
    assert ended["program"]["result"] == {"count": 2}
    with attached(trusting, program, "?after=2") as again:
        assert [receive(again)["text"], receive(again)["type"]] == ["BY SIGNAL", "ended"]


def test_bad_frames_are_answered_and_harm_nothing(
    trusting: RunningServer, api: httpx.Client
) -> None:
    program = launch(api, source=ECHO)["id"]
    with attached(trusting, program) as socket:
        receive(socket)
        for bad in (
            "{",
            "[]",
            '{"type": "message"}',
            '{"type": "dance"}',
            '{"type": "message", "text": 5}',
            '{"type": "message", "text": "a\\u0000b"}',
            '{"type": "message", "text": "\\ud800"}',
            b"\xff\x00",
        ):
            socket.send(bad)
            answer = receive(socket)
            assert answer["type"] == "error", bad
            assert set(answer["error"]) == {"message", "type", "param", "code"}
        for fine in ('{"type": "message", "text": "fine"}', b'{"type": "message", "text": "fine"}'):
            socket.send(fine)
            assert receive(socket)["text"] == "FINE"
        socket.send(json.dumps({"type": "cancel"}))
        assert receive(socket)["program"]["state"] == "cancelled"


def test_detaching_leaves_it_running(trusting: RunningServer, api: httpx.Client) -> None:
    program = launch(api, source=ECHO)["id"]
    with attached(trusting, program) as socket:
        receive(socket)
    assert api.get(f"/v1/programs/{program}").json()["state"] == "running"
    with attached(trusting, program) as socket:
        receive(socket)
        for status in (202, 202):
            assert api.delete(f"/v1/programs/{program}").status_code == status
        assert receive(socket)["program"]["error"]["code"] == "program_cancelled"


def test_a_program_that_raises_says_so(trusting: RunningServer, api: httpx.Client) -> None:
    program = launch(api, source=RAISES)["id"]
    with attached(trusting, program) as socket:
        ended = receive(socket)["program"]
    assert ended["state"] == "failed"
    assert "on purpose" in ended["error"]["message"]
    assert 'raise ValueError("on purpose")' in ended["error"]["message"]
    logs = api.get(f"/v1/programs/{program}/logs").json()["data"]
    assert any("on purpose" in line["text"] for line in logs)


class _NoSandbox:
    """A server that trusts its callers asks no sandbox."""

    uploads: UploadTable

    async def inspect(self, code: bytes) -> GuestProgram:
        raise AssertionError("asked all the same")


ODD = """
from quire.programs.inferlet import inferlet

@inferlet()
async def odd(api):
    api.log("info", "half \\ud800")
    return {"half": "\\ud800", "large": 10**400}
"""


def test_half_of_a_surrogate_pair_does_not_hide_a_program(
    trusting: RunningServer, api: httpx.Client
) -> None:
    program = launch(api, source=ODD)["id"]
    with attached(trusting, program) as socket:
        ended = receive(socket)["program"]
    assert ended["result"] == {"half": "\ud800", "large": 10**400}
    listed = {one["id"]: one for one in api.get("/v1/programs").json()["data"]}
    assert listed[program]["result"]["half"] == "\ud800"
    lines = api.get(f"/v1/programs/{program}/logs").json()["data"]
    assert "half \ud800" in [line["text"] for line in lines]


async def test_lines_of_uploaded_source_are_kept_as_long_as_the_program() -> None:
    config = ServerConfig(allow_native_upload=True)
    request = LaunchRequest(source=RAISES)
    program = await program_of(request, TenantId("me"), config, _NoSandbox(), {})
    assert isinstance(program, Inferlet)
    file = program.source
    assert file is not None
    linecache.checkcache()
    assert "on purpose" in "".join(linecache.getlines(file))
    del program
    while linecache.getlines(file):  # the thread that imported it lets go in its own time
        await asyncio.sleep(0)
        gc.collect()


def test_a_client_that_leaves_while_its_code_is_checked_leaves_no_program(
    trusting: RunningServer, api: httpx.Client, request_lines: RequestLines, tmp_path: Path
) -> None:
    """It alone would know the id."""
    began, gate = tmp_path / "began", tmp_path / "gate"
    os.mkfifo(began)
    os.mkfifo(gate)
    wait = f"open({str(began)!r}, 'w').close()\nopen({str(gate)!r}).close()\n"
    body = json.dumps({"source": wait + ECHO.replace("def echo", "def left")}).encode()
    head = f"POST /v1/programs HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n"
    with create_connection((trusting.host, trusting.port), timeout=60) as sock:
        sock.sendall(f"{head}content-type: application/json\r\n\r\n".encode() + body)
        began.read_bytes()
    line = request_lines.refused.get(timeout=60)
    gate.write_bytes(b"")
    assert (line["status"], line["reason"]) == (499, "the client has disconnected")
    assert "left" not in [one["name"] for one in listed(api)]


@pytest.mark.parametrize("source", ["", "x = 1", "def broken(", "import no_such_module_at_all"])
def test_source_without_an_entry_is_400(api: httpx.Client, source: str) -> None:
    response = api.post("/v1/programs", json={"source": source})
    assert response.status_code == 400
    message = response.json()["error"]["message"]
    if source:
        assert "the uploaded source " in message
    assert "quire-upload-" not in message, "a path of the server says nothing to its client"


def test_signals_are_checked(trusting: RunningServer, api: httpx.Client) -> None:
    program = launch(api, source=ECHO)["id"]
    path = f"/v1/programs/{program}/signal"
    for bad in ({"signal": "dance"}, {"signal": "message"}, {"signal": "cancel", "message": "x"}):
        assert api.post(path, json=bad).status_code == 400
    assert api.post(path, json={"signal": "cancel"}).status_code == 202
    with attached(trusting, program) as socket:
        *_, last = (json.loads(frame) for frame in socket)
    assert last["program"]["state"] == "cancelled"
    late = api.post(path, json={"signal": "message", "message": "x"})
    assert late.status_code == 409, late.text


@pytest.mark.parametrize("query", ["?after=-1", "?after=x"])
def test_a_bad_place_to_attach_is_refused(trusting: RunningServer, query: str) -> None:
    with pytest.raises(InvalidStatus), attached(trusting, "any", query):
        pass


def test_an_unknown_program_is_404(trusting: RunningServer) -> None:
    with pytest.raises(InvalidStatus) as refused, attached(trusting, "prog-none"):
        pass
    assert refused.value.response.status_code == 404
