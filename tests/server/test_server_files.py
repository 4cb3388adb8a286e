"""How files arrive and where they lie: forms in pieces, bounds, expiry, a start after a stop."""

from __future__ import annotations

import socket
from itertools import pairwise
from pathlib import Path

import httpx
import pytest
from fastapi.routing import APIRoute
from hypothesis import given
from hypothesis import strategies as st
from scripted_server import running_server

from quire.core.config import ServerConfig
from quire.core.errors import (
    ConfigError,
    InvalidArgument,
    NeverWithinQuota,
    QuotaExceeded,
    UnknownHandle,
)
from quire.core.ids import TenantId
from quire.server.files.multipart import MAX_PARTS, MultipartReader, PartStarted
from quire.server.files.store import FileLimits, FileRecord, FileStore
from quire.server.routes.files import router

A, B = TenantId("a"), TenantId("b")


def form(**parts: bytes) -> tuple[str, bytes]:
    """As httpx, and so the openai package, writes it."""
    request = httpx.Request("POST", "http://x", data={"purpose": "batch"}, files=parts)
    return request.headers["content-type"], request.read()


def read(content_type: str, pieces: list[bytes]) -> dict[str, tuple[str | None, bytes]]:
    reader, found, name = MultipartReader(content_type), {}, ""
    for piece in pieces:
        for event in reader.feed(piece):
            if isinstance(event, PartStarted):
                name = event.name
                found[name] = (event.filename, b"")
            else:
                filename, content = found[name]
                found[name] = (filename, content + event.content)
    reader.finish()
    return found


@given(
    content=st.lists(st.sampled_from([b"\r\n", b"--", b"b", b"\r", b"x" * 9]), max_size=40),
    cuts=st.lists(st.integers(0, 400), max_size=8),
)
def test_a_form_reads_the_same_however_it_is_cut(content: list[bytes], cuts: list[int]) -> None:
    """The content is as like the boundary as it may be without being it."""
    wanted = b"".join(content)
    body = (
        b'preamble\r\n--bb\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch'
        b"\r\n--bb\r\n"
        b'content-disposition: form-data; name="file"; filename="a b.jsonl"\r\n'
        b"Content-Type: application/octet-stream\r\n\r\n" + wanted + b"\r\n--bb--\r\nepilogue"
    )
    if b"\r\n--bb" in wanted + b"\r\n":
        return
    places = [0, *sorted(min(cut, len(body)) for cut in cuts), len(body)]
    pieces = [body[start:end] for start, end in pairwise(places)]
    found = read('multipart/form-data; boundary="bb"', pieces)
    assert found == {"purpose": (None, b"batch"), "file": ("a b.jsonl", wanted)}


def test_what_clients_write_is_read() -> None:
    content_type, body = form(file=b"line\r\nline")
    assert read(content_type, [body])["file"] == ("upload", b"line\r\nline")


@pytest.mark.parametrize(
    ("content_type", "body"),
    [
        ("application/json", b"{}"),
        ("multipart/form-data", b"--x--"),
        ("multipart/form-data; boundary=x", b"--x\r\nno-disposition: 1\r\n\r\n"),
        ("multipart/form-data; boundary=x", b"--x\r\n" + b"h" * 9000),
        ("multipart/form-data; boundary=x", b'--x\r\ncontent-disposition: a; name="f"\r\n\r\ncut'),
        (
            "multipart/form-data; boundary=x",
            b'--x\r\ncontent-disposition: a; name="f"\r\n\r\n\r\n' * (MAX_PARTS + 1),
        ),
        ("multipart/form-data; boundary*" + "1" * 5000 + "=x", b"--x--"),
        (
            "multipart/form-data; boundary=x",
            b"--x\r\ncontent-disposition: a; name=f; filename*=idna''x\r\n\r\n\r\n--x--",
        ),
        (
            "multipart/form-data; boundary=x",
            b"--x\r\ncontent-disposition: a; name=f; filename*" + b"1" * 5000 + b"=x\r\n\r\n",
        ),
    ],
)
def test_a_form_that_is_none_is_refused(content_type: str, body: bytes) -> None:
    with pytest.raises(InvalidArgument):
        read(content_type, [body])


def test_a_filename_is_text_whatever_its_encoding() -> None:
    head = b"content-disposition: a; name=file; filename*=unicode_escape''%5Cud800.jsonl"
    body = b"--x\r\n" + head + b"\r\n\r\ncontent\r\n--x--"
    found = read("multipart/form-data; boundary=x", [body])
    assert found == {"file": ("?.jsonl", b"content")}


def test_a_client_that_leaves_in_the_middle_leaves_nothing(tmp_path: Path) -> None:
    config = ServerConfig(drain_timeout_s=1.0, data_dir=tmp_path)
    with running_server(config) as server:
        content_type, body = form(file=b"x" * 5000)
        head = (
            f"POST /v1/files HTTP/1.1\r\nhost: localhost\r\ncontent-type: {content_type}\r\n"
            f"content-length: {len(body)}\r\n\r\n"
        )
        with socket.create_connection((server.host, server.port)) as sock:
            sock.sendall(head.encode() + body[:3000])
            sock.shutdown(socket.SHUT_WR)
            assert sock.recv(1) == b""
        assert httpx.get(f"{server.url}/v1/files").json()["data"] == []
    assert list(tmp_path.glob("files/*.data")) == []


def test_an_encoded_upload_is_415(http: httpx.Client) -> None:
    content_type, body = form(file=b"x")
    headers = {"content-type": content_type, "content-encoding": "gzip"}
    assert http.post("/v1/files", content=body, headers=headers).status_code == 415


# -- the store -------------------------------------------------------------------------------------


class Store:
    """A store whose clock is set by hand."""

    def __init__(self, directory: Path | None, limits: FileLimits | None = None) -> None:
        self.now_s = 1000.0
        self.files = FileStore(directory, limits or FileLimits(), lambda: self.now_s)

    def put(self, content: bytes, tenant: TenantId = A, ttl_s: int | None = None) -> FileRecord:
        upload = self.files.begin(tenant)
        try:
            upload.write(content)
        except (NeverWithinQuota, QuotaExceeded):
            upload.abandon()
            raise
        upload.close()
        return self.files.add(upload.path, tenant, "in.jsonl", "batch", ttl_s)


def test_files_outlive_their_store(tmp_path: Path) -> None:
    first = Store(tmp_path)
    kept, gone = first.put(b"kept"), first.put(b"gone")
    first.files.delete(gone)
    first.files.begin(A).close()  # the node stops in the middle of it
    strange = {"cut.json": b"{", "bits.json": b'{"id": "\xff"}', "deep.json": b"[" * 100_000}
    for name, content in strange.items():
        (tmp_path / name).write_bytes(content)
    again = Store(tmp_path)
    assert again.files.files(A) == [kept]
    assert again.files.path(kept).read_bytes() == b"kept"
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {f"{kept.id}.json", f"{kept.id}.data", *strange}
    first.files.close()
    assert tmp_path.exists()


def test_a_temporary_directory_goes_with_its_store() -> None:
    store = Store(None)
    path = store.files.path(store.put(b"x"))
    assert path.exists()
    store.files.close()
    store.files.close()
    assert not path.parent.exists()


def test_files_are_bounded_alone_together_and_in_number(tmp_path: Path) -> None:
    store = Store(tmp_path, FileLimits(max_file_bytes=10, max_bytes=15, max_files=3))
    with pytest.raises(NeverWithinQuota, match="larger than 10 bytes"):
        store.put(b"x" * 11)
    store.put(b"x" * 10)
    with pytest.raises(QuotaExceeded, match="15 bytes together, and 5 were left"):
        store.put(b"x" * 6)
    store.put(b"x" * 6, B)
    store.put(b"x" * 5)
    store.put(b"")
    with pytest.raises(QuotaExceeded, match="3 files are stored"):
        store.put(b"")
    assert len(list(tmp_path.glob("*.data"))) == 4, "what was refused has left nothing"


def test_files_that_arrive_together_are_bounded_together(tmp_path: Path) -> None:
    store = Store(tmp_path, FileLimits(max_file_bytes=10, max_bytes=15, max_files=3)).files
    first, second, other = store.begin(A), store.begin(A), store.begin(B)
    first.write(b"x" * 8)
    second.write(b"y" * 7)
    other.write(b"z" * 10)
    for upload in (first, second):
        with pytest.raises(QuotaExceeded, match="15 bytes together"):
            upload.write(b"x")
    second.abandon()
    second.abandon()
    third = store.begin(A)
    third.write(b"x" * 6)
    fourth = store.begin(A)
    with pytest.raises(QuotaExceeded, match="3 files are stored or arrive now"):
        store.begin(A)
    for upload in (first, other, third, fourth):
        upload.close()
    store.add(third.path, A, "in.jsonl", "batch", None)
    with pytest.raises(QuotaExceeded, match="3 files are stored or arrive now"):
        store.begin(A)


def test_a_file_that_is_in_use_is_kept(tmp_path: Path) -> None:
    store = Store(tmp_path, FileLimits(ttl_s=100))
    record = store.put(b"x")
    for _ in range(2):
        store.files.hold(record.id)
    store.now_s = 1100.0
    store.files.release(record.id)
    assert store.files.get(A, record.id) == record
    store.files.release(record.id)
    assert store.files.files(A) == []


def test_files_go_when_their_time_is_over(tmp_path: Path) -> None:
    store = Store(tmp_path, FileLimits(ttl_s=100))
    early, late = store.put(b"x", ttl_s=10), store.put(b"y", ttl_s=1000)
    assert (early.expires_s, late.expires_s) == (1010, 1100)
    store.now_s = 1010.0
    with pytest.raises(UnknownHandle):
        store.files.get(A, early.id)
    assert store.files.get(A, late.id) == late
    store.now_s = 1100.0
    assert store.files.files(A) == []
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_cannot_be_is_said_to_be_none(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ConfigError, match="--data-dir"):
        Store(tmp_path / "file" / "below").put(b"x")


def test_the_description_of_a_files_content_says_that_it_is_bytes() -> None:
    (route,) = (one for one in router.routes if getattr(one, "name", "") == "get_content")
    assert isinstance(route, APIRoute)
    assert list(route.responses[200]["content"]) == ["application/octet-stream"]
