"""Uploaded programs on disk: by hash, by name, per tenant."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from quire.core.errors import CapacityError, QuotaExceeded, UnknownHandle
from quire.core.ids import TenantId
from quire.node.programs import uploads
from quire.node.programs.uploads import UploadTable
from quire.programs.sandbox.messages import Manifest
from quire.programs.sandbox.program import GuestProgram, code_digest

ME, THEM = TenantId("me"), TenantId("../them")


def program(code: bytes, name: str = "p") -> GuestProgram:
    return GuestProgram(code, code_digest(code), Manifest(name))


@pytest.fixture
def table(tmp_path: Path) -> UploadTable:
    return UploadTable(tmp_path)


def test_what_was_put_is_found_again_by_another_process(tmp_path: Path) -> None:
    kept = UploadTable(tmp_path).put(program(b"code"), ME)
    again = UploadTable(tmp_path)
    for wanted in ("p", kept.digest, kept.digest[:8]):
        assert again.find(wanted, ME).program == program(b"code")


def test_short_beginnings_and_other_tenants_find_nothing(table: UploadTable) -> None:
    digest = table.put(program(b"code"), ME).digest
    for wanted, tenant in ((digest[:7], ME), ("", ME), ("../x", ME), (digest, THEM), ("p", THEM)):
        with pytest.raises(UnknownHandle):
            table.find(wanted, tenant)


def test_the_newest_of_a_name_is_meant(table: UploadTable) -> None:
    table.put(program(b"old"), ME)
    table.put(program(b"new"), ME)
    assert table.find("p", ME).code == b"new"
    table.put(program(b"old"), ME)
    assert table.find("p", ME).code == b"old"
    assert len(list(table.all(ME))) == 2
    table.delete("p", ME)
    assert table.find("p", ME).code == b"new"


def test_the_same_code_may_come_twice_at_once(
    table: UploadTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace = os.replace

    def put_another_first(source: Path, target: Path) -> None:
        monkeypatch.setattr(os, "replace", replace)
        table.put(program(b"code"), ME)
        replace(source, target)

    monkeypatch.setattr(os, "replace", put_another_first)
    table.put(program(b"code"), ME)
    assert [upload.code for upload in table.all(ME)] == [b"code"]


def test_a_tenant_keeps_so_many(table: UploadTable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads, "MAX_UPLOADS", 2)
    for number in range(2):
        table.put(program(bytes([number])), ME)
    table.put(program(b"\0"), ME)
    with pytest.raises(QuotaExceeded):
        table.put(program(b"one more"), ME)
    table.put(program(b"one more"), THEM)


def test_a_file_that_cannot_be_read_is_passed_over(table: UploadTable, tmp_path: Path) -> None:
    kept = table.put(program(b"code"), ME)
    (path,) = tmp_path.rglob(kept.digest)
    damaged = path.read_bytes().replace(kept.digest.encode(), b"\xff" * 64)
    for number, content in enumerate((b"nonsense", damaged, b"\x91" * 100_000)):
        (path.parent / (str(number) * 64)).write_bytes(content)
    assert [upload.digest for upload in table.all(ME)] == [kept.digest]


def test_a_search_reads_the_program_that_is_meant_alone(
    table: UploadTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A launch by name is no reason to read a tenant's 256 programs each time."""
    for name in "abc":
        table.put(program(name.encode(), name), ME)
    assert table.find("a", ME).code == b"a"
    read: list[str] = []
    reads = Path.read_bytes

    def noted(path: Path) -> bytes:
        read.append(path.name)
        return reads(path)

    monkeypatch.setattr(Path, "read_bytes", noted)
    assert table.find("b", ME).code == b"b"
    assert read == [code_digest(b"b")]
    UploadTable(table._directory).put(program(b"a2", "a"), ME)  # another process
    assert table.find("a", ME).code == b"a2"
    assert read == [code_digest(b"b"), code_digest(b"a2"), code_digest(b"a2")]
    table.delete("a", ME)
    assert table.find("a", ME).code == b"a"


def test_a_full_disk_is_told_and_leaves_nothing(
    table: UploadTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = table.put(program(b"code"), ME)
    writes = Path.write_bytes

    def full(path: Path, content: bytes) -> int:
        writes(path, content[:10])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(CapacityError, match="No space left"):
        table.put(program(b"more"), ME)
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == [kept.digest]
