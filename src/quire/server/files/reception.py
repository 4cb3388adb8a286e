"""Receives one upload: from the parts of a form to a stored file, limited in bytes and time."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from starlette.requests import ClientDisconnect, Request

from quire.core.errors import CapacityError, InvalidArgument
from quire.core.ids import TenantId
from quire.server.errors.errors import HttpError
from quire.server.files.multipart import MultipartReader, PartEvent, PartStarted
from quire.server.files.store import FileRecord, FileStore, IncomingFile
from quire.server.requests.strict_json import check_encoding

MAX_UPLOAD_S = 900.0
_MAX_FIELD_BYTES = 1024
_EXPIRES = ("expires_after[anchor]", "expires_after[seconds]")
_FIELDS = frozenset({"purpose", *_EXPIRES})


async def receive_file(
    request: Request, store: FileStore, tenant: TenantId, idle_limit_s: float
) -> FileRecord:
    """Store the file that ``request`` uploads.

    Raises:
        QuireError: not a form with a file and a supported purpose, or no room.
        HttpError: 408; the body stalls for ``idle_limit_s``, or takes too long in all. 415.
        CapacityError: the disk is full or cannot be written.
    """
    check_encoding(request.headers)
    reader = MultipartReader(request.headers.get("content-type", ""))
    form = _Form(await asyncio.to_thread(store.begin, tenant))
    try:
        async with asyncio.timeout(MAX_UPLOAD_S):
            chunks = aiter(request.stream())
            while True:
                async with asyncio.timeout(idle_limit_s):
                    chunk = await anext(chunks, None)
                if chunk is None:
                    break
                await asyncio.to_thread(form.take, reader.feed(chunk))
        reader.finish()
        return await asyncio.to_thread(form.store, store, tenant)
    except TimeoutError as exc:
        raise HttpError(
            408, f"the file stalled for {idle_limit_s:g} s, or took over {MAX_UPLOAD_S:g} s"
        ) from exc
    except ClientDisconnect as exc:
        raise HttpError(400, "the client left before its file was here") from exc
    except OSError as exc:
        raise CapacityError(f"the file cannot be written: {exc.strerror}; try again later") from exc
    finally:
        await asyncio.to_thread(form.close)


class _Form:
    """Writes the file as it arrives, and collects the other fields."""

    def __init__(self, upload: IncomingFile) -> None:
        self._upload = upload
        self._fields: dict[str, bytes] = {}
        self._field: str | None = None
        self._filename: str | None = None
        self._is_stored = False

    def take(self, events: list[PartEvent]) -> None:
        for event in events:
            if isinstance(event, PartStarted):
                self._start(event)
            elif self._field is None:
                self._upload.write(event.content)
            else:
                value = self._fields[self._field] + event.content
                if len(value) > _MAX_FIELD_BYTES:
                    raise InvalidArgument(
                        f"{self._field} is longer than {_MAX_FIELD_BYTES} bytes", param=self._field
                    )
                self._fields[self._field] = value

    def _start(self, part: PartStarted) -> None:
        if part.name == "file":
            if self._filename is not None:
                raise InvalidArgument("the form has two files: send one", param="file")
            self._filename = part.filename or "file"
            self._field = None
            return
        if part.name not in _FIELDS or part.name in self._fields:
            raise InvalidArgument(
                f"{part.name[:64]}: unknown or repeated field; a form has file, purpose "
                "and expires_after",
                param=part.name[:64],
            )
        self._field = part.name
        self._fields[part.name] = b""

    def store(self, store: FileStore, tenant: TenantId) -> FileRecord:
        fields = {name: value.decode("utf-8", "replace") for name, value in self._fields.items()}
        if self._filename is None:
            raise InvalidArgument("the form has no file", param="file")
        if fields.get("purpose") != "batch":
            raise InvalidArgument(
                f"purpose is {fields.get('purpose')!r}: files are the inputs of batches here, send "
                "'batch'",
                param="purpose",
            )
        ttl_s = _ttl_s(fields)
        self._upload.close()
        record = store.add(self._upload.path, tenant, self._filename[:255], "batch", ttl_s)
        self._is_stored = True
        return record

    def close(self) -> None:
        if not self._is_stored:
            self._upload.abandon()


def _ttl_s(fields: Mapping[str, str]) -> int | None:
    anchor, seconds = (fields.get(name) for name in _EXPIRES)
    if anchor is None and seconds is None:
        return None
    if anchor != "created_at" or not (seconds or "").isdecimal():
        raise InvalidArgument(
            "expires_after has an anchor, 'created_at', and seconds", param="expires_after"
        )
    return ttl_within(int((seconds or "0")[:12]), "expires_after")


def ttl_within(seconds: int, param: str) -> int:
    """Return a lifetime in seconds. Raises ``InvalidArgument`` outside OpenAI's bounds."""
    if not 3600 <= seconds <= 2_592_000:
        raise InvalidArgument(
            f"{param}: {seconds} seconds; choose 3600 (an hour) to 2592000 (30 days)", param=param
        )
    return seconds
