"""Stored responses, per tenant: their content, the conversation before them, their kept pages.

Owns the limits on number, bytes and age, and on the share of a model's memory that their pages may
hold. Beyond a limit the least recently used responses are dropped. Nothing is written to disk.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

import msgspec
from pydantic import TypeAdapter, ValidationError

from quire.core.errors import InvalidArgument, QuotaExceeded, UnknownHandle
from quire.core.ids import ModelId, TenantId
from quire.node import KeptPages
from quire.server.responses.background import BackgroundRun
from quire.server.schemas.messages import Message
from quire.server.schemas.response_items import InputItem
from quire.server.schemas.responses import ResponseObject

_ITEM: TypeAdapter[InputItem] = TypeAdapter(InputItem)
_BYTES_PER_ITEM = 1024
"""Estimated size of an item's objects here and in the history, beside its text: a short item takes
far more than its JSON."""


@dataclass(frozen=True, slots=True)
class ResponseLimits:
    """Limits for each tenant. ``ttl_s``: seconds since the last use. ``max_running``: background
    responses. ``page_share``: the share of a model's pages that stored responses may hold."""

    ttl_s: float = 3600.0
    max_responses: int = 1024
    max_bytes: int = 64 << 20
    max_running: int = 64
    page_share: float = 0.25


@dataclass(slots=True, eq=False)
class StoredResponse:
    """One response. ``history``: the conversation up to and including its answer, without
    instructions.

    ``run``: runs a background response; after its end it still has the response object.
    """

    id: str
    tenant: TenantId
    input_items: list[dict[str, Any]]
    response: ResponseObject | None = None
    history: Sequence[Message] = ()
    num_history_bytes: int = 0
    run: BackgroundRun | None = None
    kept: KeptPages | None = None
    used_s: float = 0.0
    num_bytes: int = field(default=0)
    num_event_bytes: int = field(default=0)
    """Bytes of its run's events that are already counted in ``num_bytes``."""

    def current(self) -> ResponseObject:
        """Return the response in its current state."""
        if self.response is not None:
            return self.response
        assert self.run is not None, "a response that is not finished runs"
        return self.run.response()

    @property
    def running(self) -> bool:
        return self.run is not None and not self.run.ended

    def items(self) -> list[dict[str, Any]]:
        """Return the items of its request and, once it is finished, of its output."""
        output = [] if self.response is None else self.response.output
        return [*self.input_items, *(item.model_dump() for item in output)]


@dataclass(slots=True)
class _Shelf:
    """One tenant's responses, the least recently used first, and the responses that contain an
    item, by its id. Several may: clients that resend a conversation repeat the ids of its items."""

    entries: OrderedDict[str, StoredResponse] = field(default_factory=OrderedDict)
    holders: dict[str, dict[str, StoredResponse]] = field(default_factory=dict)
    num_bytes: int = 0


class ResponseStore:
    """The responses of all tenants. ``now_s`` is a monotonic clock; ``num_blocks`` returns the size
    of a model's memory."""

    def __init__(
        self,
        limits: ResponseLimits,
        now_s: Callable[[], float],
        num_blocks: Callable[[ModelId], int],
    ) -> None:
        self._limits = limits
        self._now_s = now_s
        self._num_blocks = num_blocks
        self._shelves: dict[TenantId, _Shelf] = {}

    def put(self, entry: StoredResponse) -> None:
        """Store a response."""
        shelf = self._shelves.setdefault(entry.tenant, _Shelf())
        shelf.entries[entry.id] = entry
        self._use(shelf, entry)  # set first: the response may have run for longer than the ttl
        self._drop_old()
        self._count(shelf, entry, _num_bytes(entry))
        for item in entry.items():
            shelf.holders.setdefault(item["id"], {})[entry.id] = entry
        self._make_room(shelf, entry)
        if entry.kept is not None:
            self._release_pages(shelf, entry.kept.model)

    def grown(self, entry: StoredResponse) -> None:
        """Count the new events of a background response. Other responses are dropped to make room
        for them, as for all stored data; one response may not take all the room.

        Raises:
            QuotaExceeded: background responses need more than the tenant may store.
        """
        if not self.holds(entry):
            return  # deleted: its run is being cancelled
        assert entry.run is not None, "what grows runs"
        shelf, limit = self._shelves[entry.tenant], self._limits.max_bytes
        more = entry.run.num_bytes - entry.num_event_bytes
        self._count(shelf, entry, entry.num_bytes + more)
        self._make_room(shelf, entry)
        if shelf.num_bytes > limit:
            raise QuotaExceeded(
                f"this response has {entry.num_bytes} bytes, and all that is stored and running "
                f"{shelf.num_bytes} of {limit} that one tenant may have: run fewer in the "
                "background at a time, or without a stream to follow"
            )

    def finish(self, entry: StoredResponse) -> None:
        """Note that a background response has ended. If it was deleted while it ran, the pages that
        were kept at its end are released."""
        if self.holds(entry):
            self.put(entry)
        elif entry.kept is not None:
            entry.kept.release()

    def get(self, tenant: TenantId, response_id: str) -> StoredResponse:
        """Return a response. Raises ``UnknownHandle`` if it does not exist, or is another
        tenant's."""
        self._drop_old()
        shelf = self._shelves.get(tenant, _Shelf())
        entry = shelf.entries.get(response_id)
        if entry is None:
            raise UnknownHandle(
                f"no response {response_id[:100]!r} is stored: it was not to be, has been deleted, "
                f"or has not been used for {self._limits.ttl_s:g} s"
            )
        self._use(shelf, entry)
        return entry

    def item(self, tenant: TenantId, item_id: str, param: str) -> InputItem:
        """Return an item of a stored response, in the form of a request.

        Raises:
            InvalidArgument: the tenant has no such item, or it is not valid in a request.
        """
        found = self.find_item(tenant, item_id)
        if found is None:
            raise InvalidArgument(
                f"{param}: no stored item {item_id[:100]!r}; send the item itself", param=param
            )
        return sent_again(found, param)

    def find_item(self, tenant: TenantId, item_id: str) -> dict[str, Any] | None:
        """Return an item of a stored response, as clients receive it; None: no response has it."""
        self._drop_old()
        shelf = self._shelves.get(tenant, _Shelf())
        for entry in shelf.holders.get(item_id, {}).values():
            for item in entry.items():
                if item["id"] == item_id:
                    return item
        return None

    def delete(self, tenant: TenantId, response_id: str) -> None:
        """Delete a response; one that is running is cancelled. Raises ``UnknownHandle``."""
        entry = self.get(tenant, response_id)
        self._drop(self._shelves[tenant], entry)

    def holds(self, entry: StoredResponse) -> bool:
        """Return whether ``entry`` is still stored."""
        shelf = self._shelves.get(entry.tenant)
        return shelf is not None and shelf.entries.get(entry.id) is entry

    def check_running(self, tenant: TenantId) -> None:
        """Raise ``QuotaExceeded`` if the tenant has too many background responses."""
        shelf = self._shelves.get(tenant, _Shelf())
        num_running = sum(entry.running for entry in shelf.entries.values())
        if num_running >= self._limits.max_running:
            raise QuotaExceeded(
                f"{num_running} responses are running in the background, the most that one tenant "
                "may have: wait for one to end, or cancel one"
            )

    async def close(self) -> None:
        """End all background responses."""
        runs = [e.run for s in self._shelves.values() for e in s.entries.values() if e.run]
        for run in runs:
            run.cancel()
        for run in runs:
            await run.wait_ended()

    # -- bounds ------------------------------------------------------------------------------------

    def _use(self, shelf: _Shelf, entry: StoredResponse) -> None:
        entry.used_s = self._now_s()
        shelf.entries.move_to_end(entry.id)

    def _drop_old(self) -> None:
        """Drop expired responses of all tenants: a tenant that never calls again would otherwise
        keep its responses and pages."""
        limit_s = self._now_s() - self._limits.ttl_s
        for shelf in self._shelves.values():
            old = takewhile(lambda entry: entry.used_s <= limit_s, shelf.entries.values())
            for entry in [entry for entry in old if not entry.running]:
                self._drop(shelf, entry)

    def _count(self, shelf: _Shelf, entry: StoredResponse, num_bytes: int) -> None:
        shelf.num_bytes += num_bytes - entry.num_bytes
        entry.num_bytes = num_bytes
        entry.num_event_bytes = 0 if entry.run is None else entry.run.num_bytes

    def _make_room(self, shelf: _Shelf, wanted: StoredResponse) -> None:
        """Drop responses until the limits hold, but never ``wanted``: its client was answered that
        it is stored."""
        limits = self._limits
        if len(shelf.entries) <= limits.max_responses and shelf.num_bytes <= limits.max_bytes:
            return
        for entry in list(shelf.entries.values()):
            is_full = len(shelf.entries) > limits.max_responses
            if not is_full and shelf.num_bytes <= limits.max_bytes:
                return
            if not entry.running and entry is not wanted:
                self._drop(shelf, entry)

    def _release_pages(self, shelf: _Shelf, model: ModelId) -> None:
        limit = int(self._num_blocks(model) * self._limits.page_share)
        kept = [
            entry.kept
            for entry in shelf.entries.values()
            if entry.kept is not None and not entry.kept.released and entry.kept.model == model
        ]
        num_pages = sum(one.num_pages for one in kept)
        for one in kept:
            if num_pages <= limit:
                return
            num_pages -= one.num_pages
            one.release()

    def _drop(self, shelf: _Shelf, entry: StoredResponse) -> None:
        del shelf.entries[entry.id]
        shelf.num_bytes -= entry.num_bytes
        for item in entry.items():
            holders = shelf.holders.get(item["id"], {})
            holders.pop(entry.id, None)
            if not holders:
                shelf.holders.pop(item["id"], None)
        if entry.kept is not None:
            entry.kept.release()
        if entry.run is not None:
            entry.run.cancel()


def sent_again(item: dict[str, Any], param: str) -> InputItem:
    """Return ``item`` as an item of a request. Raises ``InvalidArgument`` if a request may not
    contain it: a model may have written, for example, an invalid function name."""
    try:
        return _ITEM.validate_python(item)
    except ValidationError as exc:
        problem = exc.errors()[0]["msg"]
        raise InvalidArgument(
            f"{param}: the stored item is not fit to be sent again ({problem}): go on by "
            "previous_response_id, or leave it out",
            param=param,
        ) from exc


def _num_bytes(entry: StoredResponse) -> int:
    """Return the approximate size of a response, including its history."""
    total = entry.num_history_bytes + len(msgspec.json.encode(entry.input_items))
    total += len(entry.input_items) * _BYTES_PER_ITEM
    if entry.response is not None:
        total += len(entry.response.to_json())
    if entry.run is not None:
        total += entry.run.num_bytes
    return total
