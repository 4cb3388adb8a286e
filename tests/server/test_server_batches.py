"""/v1/files and /v1/batches through the openai package, on a node whose engine can be held."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from request_log import RequestLines
from scripted_server import MODEL, GatedEngine, RunningServer, running_server

from quire.core.config import ServerConfig, TenantConfig
from quire.core.errors import CapacityError, NeverWithinQuota, QuotaExceeded, UnknownHandle
from quire.core.ids import TenantId
from quire.server.batches import run as run_module
from quire.server.batches.calls import AnsweredRequest, BatchCalls
from quire.server.batches.lines import check_lines, read_line
from quire.server.batches.record import BatchRecord
from quire.server.batches.results import RequestResult, Results, open_results
from quire.server.batches.run import Pause
from quire.server.batches.service import BatchLimits, BatchService
from quire.server.files.store import FileLimits, FileStore
from quire.server.schemas.batches import BatchRequest
from quire.testing import FakeEncoder

CHAT = "/v1/chat/completions"
TENANT = TenantId("default")


@pytest.fixture(scope="module")
def engine() -> GatedEngine:
    return GatedEngine()


@pytest.fixture(scope="module")
def gated(engine: GatedEngine) -> Iterator[RunningServer]:
    encoders = {"embedder": FakeEncoder()}
    config = ServerConfig(drain_timeout_s=1.0)
    with running_server(config, load=lambda: engine, encoders=encoders) as running:
        yield running


@pytest.fixture
def openai_client(gated: RunningServer) -> Iterator[openai.OpenAI]:
    with client_of(gated) as client:
        yield client


@pytest.fixture
def closed_gate(engine: GatedEngine) -> Iterator[GatedEngine]:
    engine.arrived.clear()
    engine.gate.clear()
    yield engine
    engine.gate.set()


def client_of(server: RunningServer, key: str = "none") -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=0)


def line(name: str, body: dict[str, Any], url: str = CHAT) -> bytes:
    return json.dumps({"custom_id": name, "method": "POST", "url": url, "body": body}).encode()


def say(name: str, text: str | None = None, **fields: Any) -> bytes:
    message = {"role": "user", "content": f"say {text or name}"}
    return line(name, {"model": MODEL, "messages": [message], **fields})


def upload(client: openai.OpenAI, *lines: bytes) -> str:
    return client.files.create(file=("in.jsonl", b"\n".join(lines)), purpose="batch").id


def begun(client: openai.OpenAI, *lines: bytes, endpoint: Any = CHAT, **fields: Any) -> Any:
    return client.batches.create(
        input_file_id=upload(client, *lines), endpoint=endpoint, completion_window="24h", **fields
    )


def ended(client: openai.OpenAI, batch_id: str) -> Any:
    """As its clients find out."""
    while True:
        batch = client.batches.retrieve(batch_id)
        if batch.status in ("completed", "failed", "expired", "cancelled"):
            return batch
        time.sleep(0.01)


def lines_of(client: openai.OpenAI, file_id: str | None) -> dict[str, Any]:
    assert file_id is not None
    content = client.files.content(file_id).text
    found = [json.loads(one) for one in content.splitlines()]
    return {one["custom_id"]: one for one in found}


# -- files -----------------------------------------------------------------------------------------


def test_a_file_is_kept_listed_read_and_deleted(openai_client: openai.OpenAI) -> None:
    content = b'{"a": "\xc3\xa9"}\r\n--x\r\n' * 5000
    made = openai_client.files.create(file=("in.jsonl", content), purpose="batch")
    assert (made.bytes, made.filename, made.purpose) == (len(content), "in.jsonl", "batch")
    assert made.expires_at == made.created_at + 30 * 86400
    assert openai_client.files.retrieve(made.id) == made
    assert openai_client.files.content(made.id).read() == content
    assert made.id in [one.id for one in openai_client.files.list(purpose="batch")]
    assert made.id not in [one.id for one in openai_client.files.list(purpose="batch_output")]
    assert openai_client.files.delete(made.id).deleted
    for use in (openai_client.files.retrieve, openai_client.files.content):
        with pytest.raises(openai.NotFoundError):
            use(made.id)


def test_files_are_listed_in_pages(openai_client: openai.OpenAI) -> None:
    made = [upload(openai_client, say(str(number))) for number in range(3)]
    pages = openai_client.files.list(limit=1, order="asc", purpose="batch")
    assert pages.has_more
    listed = [one.id for one in pages]
    assert listed[-3:] != []
    assert set(made) <= set(listed)
    assert len(set(listed)) == len(listed)


def test_a_file_may_go_earlier(openai_client: openai.OpenAI) -> None:
    made = openai_client.files.create(
        file=b"{}", purpose="batch", expires_after={"anchor": "created_at", "seconds": 3600}
    )
    assert made.expires_at == made.created_at + 3600


@pytest.mark.parametrize(
    ("form", "param"),
    [
        ({"data": {"purpose": "assistants"}, "files": {"file": b"x"}}, "purpose"),
        ({"data": {"purpose": "batch"}, "files": {"other": b"x"}}, "other"),
        ({"data": {"purpose": "batch", "colour": "red"}, "files": {"file": b"x"}}, "colour"),
        ({"data": {"purpose": "batch", "expires_after[seconds]": "5"}, "files": {"file": b"x"}},
         "expires_after"),
        ({"data": {"purpose": "b" * 2000}, "files": {"file": b"x"}}, "purpose"),
        ({"json": {"purpose": "batch"}}, None),
    ],
)  # fmt: skip
def test_an_upload_that_is_none_is_refused(
    gated: RunningServer, form: dict[str, Any], param: str | None
) -> None:
    answer = httpx.post(f"{gated.url}/v1/files", **form)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param


# -- batches ---------------------------------------------------------------------------------------


def test_a_batch_answers_every_line(gated: RunningServer, openai_client: openai.OpenAI) -> None:
    lines = [say(f"r{number}") for number in range(40)]
    lines.insert(7, say("bad", temperature=9))
    lines.insert(9, say("streamed", stream=True))
    batch = begun(openai_client, *lines, b"", metadata={"a": "b"})
    assert (batch.object, batch.endpoint, batch.metadata) == ("batch", CHAT, {"a": "b"})
    batch = ended(openai_client, batch.id)
    assert batch.status == "completed"
    counts = batch.request_counts
    assert (counts.total, counts.completed, counts.failed) == (42, 40, 2)
    answers = lines_of(openai_client, batch.output_file_id)
    assert set(answers) == {f"r{number}" for number in range(40)}
    for name, one in answers.items():
        assert (one["error"], one["response"]["status_code"]) == (None, 200)
        assert one["response"]["body"]["choices"][0]["message"]["content"] == name
    errors = lines_of(openai_client, batch.error_file_id)
    assert errors["bad"]["response"]["status_code"] == 400
    assert errors["bad"]["response"]["body"]["error"]["param"] == "temperature"
    assert "whole" in errors["streamed"]["response"]["body"]["error"]["message"]
    assert openai_client.files.retrieve(batch.output_file_id).purpose == "batch_output"
    assert batch.created_at <= batch.in_progress_at <= batch.finalizing_at <= batch.completed_at
    assert openai_client.batches.cancel(batch.id).status == "completed"


@pytest.mark.parametrize(
    ("endpoint", "body"),
    [
        ("/v1/completions", {"prompt": "say x"}),
        ("/v1/responses", {"input": "say x", "store": False}),
        ("/v1/embeddings", {"input": "a", "model": "embedder"}),
    ],
)
def test_a_batch_of_other_routes(
    gated: RunningServer, openai_client: openai.OpenAI, endpoint: str, body: dict[str, Any]
) -> None:
    batch = begun(openai_client, line("one", body, endpoint), endpoint=endpoint)
    batch = ended(openai_client, batch.id)
    assert (batch.status, batch.request_counts.completed) == ("completed", 1)
    assert lines_of(openai_client, batch.output_file_id)["one"]["response"]["body"]["usage"]


def test_an_input_that_is_none_fails_with_its_lines(
    gated: RunningServer, openai_client: openai.OpenAI
) -> None:
    batch = begun(
        openai_client,
        say("same"),
        say("same"),
        b"{",
        b"[]",
        line("get", {}, "/v1/embeddings"),
        line("", {}),
        say("x").replace(b'"POST"', b'"GET"'),
        say("y")[:-1] + b', "more": 1}',
        line("z", []),  # type: ignore[arg-type]
    )
    batch = ended(openai_client, batch.id)
    assert batch.status == "failed"
    assert batch.failed_at is not None
    assert [(error.line, error.code) for error in batch.errors.data] == [
        (2, "duplicate_custom_id"),
        (3, "invalid_json_line"),
        (4, "invalid_json_line"),
        (5, "invalid_url"),
        (6, "invalid_custom_id"),
        (7, "invalid_method"),
        (8, "unknown_parameter"),
        (9, "invalid_body"),
    ]
    empty = ended(openai_client, begun(openai_client, b"\n \n").id)
    assert [error.code for error in empty.errors.data] == ["empty_file"]


def test_a_cancelled_batch_keeps_what_was_answered(
    gated: RunningServer, openai_client: openai.OpenAI, closed_gate: GatedEngine
) -> None:
    batch = begun(openai_client, say("one"), say("two"))
    assert closed_gate.arrived.wait(60)
    with pytest.raises(openai.BadRequestError, match="is the input of batch"):
        openai_client.files.delete(batch.input_file_id)
    assert openai_client.batches.cancel(batch.id).status in ("cancelling", "cancelled")
    closed_gate.gate.set()
    batch = ended(openai_client, batch.id)
    assert batch.status == "cancelled"
    assert batch.cancelling_at <= batch.cancelled_at
    errors = lines_of(openai_client, batch.error_file_id)
    assert {one["error"]["code"] for one in errors.values()} == {"batch_cancelled"}
    assert batch.output_file_id is None
    openai_client.files.delete(batch.input_file_id)
    assert gated.num_held_blocks() == 0


def test_requests_of_a_batch_are_one_program_of_low_priority(
    gated: RunningServer,
    openai_client: openai.OpenAI,
    closed_gate: GatedEngine,
    request_lines: RequestLines,
) -> None:
    hinted = {"nvext": {"agent_hints": {"priority": 1000}}}
    batch = begun(openai_client, say("one", **hinted), say("two"))
    assert closed_gate.arrived.wait(60)
    programs = httpx.get(f"{gated.url}/v1/programs").json()["data"]
    (own,) = [one for one in programs if one["client_id"] == batch.id]
    assert own["form"] == "session"
    closed_gate.gate.set()
    assert ended(openai_client, batch.id).status == "completed"
    for told in (request_lines.next(), request_lines.next()):
        assert (told["client_id"], told["priority"]) == (batch.id, -(1 << 30))


def test_batches_are_listed_newest_first(
    gated: RunningServer, openai_client: openai.OpenAI
) -> None:
    made = [begun(openai_client, say(str(number))).id for number in range(3)]
    for batch_id in made:
        ended(openai_client, batch_id)
    listed = [one.id for one in openai_client.batches.list(limit=2)]
    assert listed[:3] == made[::-1]
    assert len(set(listed)) == len(listed)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"endpoint": "/v1/moderations"}, "endpoint"),
        ({"completion_window": "1 day"}, "completion_window"),
        ({"output_expires_after": {"anchor": "created_at", "seconds": 5}},
         "output_expires_after.seconds"),
        ({"priority": 5}, "priority"),
    ],
)  # fmt: skip
def test_a_batch_that_is_none_is_refused(
    gated: RunningServer, fields: dict[str, Any], param: str
) -> None:
    body = {"input_file_id": "file-1", "endpoint": CHAT, "completion_window": "24h", **fields}
    answer = httpx.post(f"{gated.url}/v1/batches", json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


def test_nobody_sees_anothers_files_and_batches() -> None:
    tenants = [TenantConfig(TenantId(name), api_keys=(f"key-{name}",)) for name in ("one", "two")]
    with (
        running_server(tenants=tenants) as server,
        client_of(server, "key-one") as mine,
        client_of(server, "key-two") as other,
    ):
        batch = begun(mine, say("secret"))
        ended(mine, batch.id)
        for use in (
            lambda: other.files.retrieve(batch.input_file_id),
            lambda: other.files.content(batch.input_file_id),
            lambda: other.files.delete(batch.input_file_id),
            lambda: other.batches.retrieve(batch.id),
            lambda: other.batches.cancel(batch.id),
            lambda: other.batches.create(
                input_file_id=batch.input_file_id, endpoint=CHAT, completion_window="24h"
            ),
        ):
            with pytest.raises(openai.NotFoundError):
                use()
        assert list(other.files.list()) == []
        assert list(other.batches.list()) == []


def test_a_batch_goes_on_when_the_node_starts_again(tmp_path: Path) -> None:
    """What was answered before is not answered again, and nothing is lost."""
    config = ServerConfig(drain_timeout_s=1.0, data_dir=tmp_path)
    engine = GatedEngine()
    names = [f"r{number}" for number in range(60)]
    with running_server(config, load=lambda: engine) as server, client_of(server) as client:
        engine.close_after(9)
        batch_id = begun(client, *map(say, names), output_expires_after=None).id
        assert engine.arrived.wait(60)
        before = client.batches.retrieve(batch_id)
        server.loop.call_soon_threadsafe(server.service.request_stop)
        server.loop.call_soon_threadsafe(server.service.request_stop)
        engine.gate.set()
    assert before.status == "in_progress"
    assert 0 < before.request_counts.completed < 60
    with running_server(config) as server, client_of(server) as client:
        batch = ended(client, batch_id)
        assert (batch.status, batch.request_counts.completed) == ("completed", 60)
        answers = lines_of(client, batch.output_file_id)
    assert set(answers) == set(names)
    content = (tmp_path / "files" / f"{batch.output_file_id}.data").read_bytes()
    assert len(content.splitlines()) == 60, "no request has two lines"


# -- a run by itself -------------------------------------------------------------------------------


class ScriptedCalls:
    """Answers with what is in ``answers``, in order, then with 200."""

    def __init__(self, *answers: AnsweredRequest) -> None:
        self.answers = list(answers)
        self.asked: list[dict[str, Any]] = []

    async def call(
        self, tenant: TenantId, path: str, body: Mapping[str, Any], program: str
    ) -> AnsweredRequest:
        self.asked.append(dict(body))
        return self.answers.pop(0) if self.answers else AnsweredRequest(200, "req_1", {"ok": True})


class NeverCalls:
    """Answers nobody."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()

    async def call(
        self, tenant: TenantId, path: str, body: Mapping[str, Any], program: str
    ) -> AnsweredRequest:
        self.asked.set()
        await asyncio.Event().wait()
        raise AssertionError


def service_of(
    directory: Path,
    calls: BatchCalls,
    limits: BatchLimits | None = None,
    now_s: float = 1000.0,
    pause: Pause = asyncio.sleep,
) -> tuple[BatchService, FileStore]:
    files = FileStore(directory, FileLimits(), lambda: now_s)
    return BatchService(files, calls, lambda: now_s, 1 << 20, limits, pause), files


def stored(files: FileStore, *lines: bytes) -> BatchRequest:
    upload = files.begin(TENANT)
    upload.write(b"\n".join(lines))
    upload.close()
    record = files.add(upload.path, TENANT, "in.jsonl", "batch", None)
    return BatchRequest(input_file_id=record.id, endpoint=CHAT, completion_window="1h")


def refused(status: int, code: str) -> AnsweredRequest:
    return AnsweredRequest(status, "req_0", {"error": {"message": "x", "code": code}})


async def test_what_is_only_true_now_is_tried_again(tmp_path: Path) -> None:
    pauses: list[float] = []

    async def no_pause(seconds: float) -> None:
        pauses.append(seconds)

    calls = ScriptedCalls(
        *[refused(503, "draining")] * 6, refused(429, "quota_exceeded"), refused(400, "invalid")
    )
    service, files = service_of(tmp_path, calls, pause=no_pause)
    batch = await service.create(TENANT, stored(files, say("one")))
    await service.wait_ended(batch.id)
    assert pauses == [1, 2, 4, 8, 16, 30, 30]
    assert (batch.status, batch.request_counts.failed) == ("completed", 1)
    assert all(body["priority"] == 1 << 30 for body in calls.asked)


async def test_a_request_whose_program_is_ended_again_and_again_has_failed(
    tmp_path: Path,
) -> None:
    async def no_pause(seconds: float) -> None:
        pass

    calls = ScriptedCalls(*[refused(409, "program_cancelled")] * 9)
    service, files = service_of(tmp_path, calls, pause=no_pause)
    batch = await service.create(TENANT, stored(files, say("one")))
    await service.wait_ended(batch.id)
    assert len(calls.asked) == 3
    assert (batch.status, batch.request_counts.failed) == ("completed", 1)


@pytest.mark.parametrize("hours", [1, 24])
async def test_a_batch_expires_after_its_window(tmp_path: Path, hours: int) -> None:
    service, files = service_of(tmp_path, NeverCalls())
    request = stored(files, say("one")).model_copy(update={"completion_window": f"{hours}h"})
    batch = await service.create(TENANT, request)
    assert (batch.created_at, batch.expires_at) == (1000, 1000 + hours * 3600)
    await service.close()


async def test_a_batch_expires_and_says_what_has_not_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    calls = NeverCalls()
    service, files = service_of(tmp_path, calls)
    batch = await service.create(TENANT, stored(files, say("one"), say("two")))
    await calls.asked.wait()
    await service.close()
    assert batch.status == "in_progress"
    late, files = service_of(tmp_path, NeverCalls(), now_s=1000.0 + 3600)
    await late.start()
    await late.wait_ended(batch.id)
    found = late.get(TENANT, batch.id)
    assert (found.status, found.expired_at) == ("expired", 4600)
    assert found.error_file_id is not None
    content = files.path(files.get(TENANT, found.error_file_id)).read_text()
    reasons = [json.loads(one)["error"]["code"] for one in content.splitlines()]
    assert reasons == ["batch_expired"] * 2
    assert found.request_counts.failed == 2
    assert [one.getMessage() for one in caplog.records if one.levelno >= logging.ERROR] == []


async def test_a_cancelled_batch_is_cancelled_after_a_stop_in_between(tmp_path: Path) -> None:
    calls = NeverCalls()
    service, files = service_of(tmp_path, calls)
    batch = await service.create(TENANT, stored(files, say("one")))
    await calls.asked.wait()
    await service.close()
    path = tmp_path / "batches" / f"{batch.id}.json"
    path.write_text(path.read_text().replace('"in_progress"', '"cancelling"'))
    again, _ = service_of(tmp_path, NeverCalls())
    await again.start()
    await again.wait_ended(batch.id)
    assert again.get(TENANT, batch.id).status == "cancelled"


async def test_batches_are_bounded_in_number(tmp_path: Path) -> None:
    limits = BatchLimits(max_waiting=2, num_at_once=1, max_batches=3)
    calls = NeverCalls()
    service, files = service_of(tmp_path, calls, limits)
    request = stored(files, say("one"))
    made = [await service.create(TENANT, request) for _ in range(2)]
    with pytest.raises(QuotaExceeded, match="2 batches are not over"):
        await service.create(TENANT, request)
    await calls.asked.wait()
    assert made[1].status == "validating", "it waits for its turn"
    for _ in range(4):
        batch = made.pop(0)
        await service.cancel(TENANT, batch.id)
        await service.wait_ended(batch.id)
        made.append(await service.create(TENANT, request))
    assert len(service.batches(TENANT)) == 3
    assert len(list((tmp_path / "batches").glob("*.json"))) == 3
    await service.close()


async def test_ended_batches_are_kept_up_to_their_limit(tmp_path: Path) -> None:
    service, files = service_of(tmp_path, ScriptedCalls(), BatchLimits(max_batches=5))
    request = stored(files, say("one"))
    made = []
    for number in range(1, 8):
        made.append((await service.create(TENANT, request)).id)
        await service.wait_ended(made[-1])
        assert [one.id for one in service.batches(TENANT)] == made[-5:][::-1], number
    assert {one.stem for one in (tmp_path / "batches").glob("*.json")} == set(made[-5:])
    await service.close()


class LastCalls:
    """Answers when it is told to."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.may_answer = asyncio.Event()

    async def call(
        self, tenant: TenantId, path: str, body: Mapping[str, Any], program: str
    ) -> AnsweredRequest:
        self.asked.set()
        await self.may_answer.wait()
        return AnsweredRequest(200, "req_1", {"ok": True})


class HeldSaves:
    """Saves of records that wait on the disk until they are let go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._save = BatchRecord.save
        self._lock = threading.Lock()
        self.loop = asyncio.get_running_loop()
        self.has_begun = asyncio.Event()
        self.go_on = threading.Event()
        self.num_at_once = 0
        self.most_at_once = 0
        self.statuses: list[str] = []
        monkeypatch.setattr(BatchRecord, "save", lambda record, at: self.save(record, at))

    def save(self, record: BatchRecord, directory: Path) -> None:
        with self._lock:
            self.num_at_once += 1
            self.most_at_once = max(self.most_at_once, self.num_at_once)
        self.loop.call_soon_threadsafe(self.has_begun.set)
        self.go_on.wait(60)
        self._save(record, directory)
        self.statuses.append(record.batch.status)
        with self._lock:
            self.num_at_once -= 1


async def test_a_batch_whose_last_answer_comes_as_it_is_cancelled_is_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    calls = LastCalls()
    service, files = service_of(tmp_path, calls)
    batch = await service.create(TENANT, stored(files, say("one")))
    await calls.asked.wait()
    saves = HeldSaves(monkeypatch)
    cancelling = asyncio.create_task(service.cancel(TENANT, batch.id))
    await saves.has_begun.wait()
    calls.may_answer.set()
    for _ in range(10):  # the answer arrives meanwhile
        await asyncio.sleep(0)
    saves.go_on.set()
    assert (await cancelling).status in ("cancelling", "cancelled")
    await service.wait_ended(batch.id)
    assert (batch.status, batch.errors) == ("cancelled", None)
    assert [one.getMessage() for one in caplog.records if one.levelno >= logging.ERROR] == []


async def test_no_result_says_cancelled_before_the_record_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that is killed in between would find results of all requests, and complete it."""
    calls = NeverCalls()
    service, files = service_of(tmp_path, calls)
    batch = await service.create(TENANT, stored(files, say("one")))
    await calls.asked.wait()
    saves, plain, saved = HeldSaves(monkeypatch), Results.add, list[list[str]]()

    def add(results: Results, result: RequestResult) -> None:
        saved.append(list(saves.statuses))
        plain(results, result)

    monkeypatch.setattr(Results, "add", add)
    cancelling = asyncio.create_task(service.cancel(TENANT, batch.id))
    await saves.has_begun.wait()
    for _ in range(50):  # threads that need not wait for the record have run
        await asyncio.to_thread(lambda: None)
    saves.go_on.set()
    await cancelling
    await service.wait_ended(batch.id)
    assert batch.status == "cancelled"
    assert [statuses[0] for statuses in saved] == ["cancelling"]


async def test_a_record_is_written_by_one_thread_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch that is cancelled while its record is being written: that thread goes on."""
    service, files = service_of(tmp_path, NeverCalls())
    request = stored(files, say("one"))
    saves = HeldSaves(monkeypatch)
    saves.go_on.set()
    batch = await service.create(TENANT, request)
    saves.go_on.clear()
    saves.has_begun.clear()
    await saves.has_begun.wait()  # of "in_progress"
    cancelling = asyncio.create_task(service.cancel(TENANT, batch.id))
    for _ in range(10):
        await asyncio.sleep(0)
    await asyncio.to_thread(lambda: None)
    saves.go_on.set()
    await cancelling
    await service.wait_ended(batch.id)
    assert saves.most_at_once == 1
    assert saves.statuses[-1] == batch.status == "cancelled"
    assert list((tmp_path / "batches").glob("*.part")) == []


async def test_results_are_opened_by_one_thread_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch that is cancelled while its results are opened closes them."""
    opened: list[Results] = []
    loop, begun, go_on = asyncio.get_running_loop(), asyncio.Event(), threading.Event()

    def held(directory: Path, batch_id: str) -> Results:
        loop.call_soon_threadsafe(begun.set)
        go_on.wait(60)
        opened.append(open_results(directory, batch_id))
        return opened[-1]

    monkeypatch.setattr(run_module, "open_results", held)
    service, files = service_of(tmp_path, NeverCalls())
    batch = await service.create(TENANT, stored(files, say("one"), say("two")))
    await begun.wait()
    await service.cancel(TENANT, batch.id)
    assert opened == []
    go_on.set()
    await service.wait_ended(batch.id)
    assert batch.status == "cancelled"
    assert [one.errors.file.closed and one.outputs.file.closed for one in opened] == [True, True]
    assert batch.error_file_id is not None
    content = files.path(files.get(TENANT, batch.error_file_id)).read_bytes()
    assert [json.loads(one)["custom_id"] for one in content.splitlines()] == ["one", "two"]


async def test_a_batch_that_cannot_be_written_is_refused_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(record: BatchRecord, directory: Path) -> None:
        raise OSError(28, "No space left on device")

    service, files = service_of(tmp_path, ScriptedCalls(), BatchLimits(max_waiting=1))
    request = stored(files, say("one"))
    with monkeypatch.context() as patched:
        patched.setattr(BatchRecord, "save", full)
        with pytest.raises(CapacityError, match="No space left on device; try again later"):
            await service.create(TENANT, request)
    assert service.batches(TENANT) == []
    service.check_unused(TENANT, request.input_file_id)
    batch = await service.create(TENANT, request)
    await service.wait_ended(batch.id)
    assert batch.status == "completed"


async def test_the_input_of_a_batch_is_kept_until_it_is_over(tmp_path: Path) -> None:
    now = [1000.0]
    files = FileStore(tmp_path, FileLimits(ttl_s=100), lambda: now[0])
    calls = LastCalls()
    service = BatchService(files, calls, lambda: now[0], 1 << 20)
    request = stored(files, *(say(str(number)) for number in range(40)))
    batch = await service.create(TENANT, request)
    await calls.asked.wait()
    now[0] = 1200.0  # the file's time is over, that of the batch is not
    assert files.get(TENANT, request.input_file_id).expires_s == 1100
    calls.may_answer.set()
    await service.wait_ended(batch.id)
    assert (batch.status, batch.request_counts.completed) == ("completed", 40)
    with pytest.raises(UnknownHandle):
        files.get(TENANT, request.input_file_id)


def test_a_line_that_was_cut_by_a_stop_runs_again(tmp_path: Path) -> None:
    results = open_results(tmp_path, "batch_1")
    results.add(RequestResult("one", 200, "req_1", {}))
    results.close()
    path = tmp_path / "batch_1.outputs"
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"custom_id": "tw')
    again = open_results(tmp_path, "batch_1")
    assert again.done == {"one"}
    again.add(RequestResult("two", 200, "req_2", {}))
    again.close()
    assert [json.loads(one)["custom_id"] for one in path.read_bytes().splitlines()] == [
        "one",
        "two",
    ]


def test_results_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quire.server.batches.results.MAX_RESULT_BYTES", 300)
    results = open_results(tmp_path, "batch_1")
    results.add(RequestResult("one", 200, "req_1", {}))
    with pytest.raises(NeverWithinQuota, match="over 300 bytes"):
        results.add(RequestResult("two", 200, "req_1", {"text": "x" * 200}))
    results.close()


def test_a_line_that_is_too_long_is_told_with_its_number(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(say("a") + b"\n  " + say("b", "x" * 5000) + b"\n\n \t" + say("c") + b"\n{")
    checked = check_lines(path, CHAT, 1000)
    assert [(error.line, error.code) for error in checked.errors] == [
        (2, "line_too_long"),
        (5, "invalid_json_line"),
    ]
    assert [read_line(path, one)["model"] for one in checked.lines] == [MODEL] * 2
