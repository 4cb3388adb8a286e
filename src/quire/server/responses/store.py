"""Stored responses, per tenant: their content, the conversation before them, their kept pages.

Owns which responses contain an item, and the limit on the share of a model's memory that their
pages may hold. Beyond the tenant's other limits the least recently used responses are dropped
(``Shelves``). Nothing is written to disk.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
from pydantic import TypeAdapter, ValidationError

from quire.core.errors import InvalidArgument, QuotaExceeded, UnknownHandle
from quire.core.ids import ModelId, TenantId
from quire.node import KeptPages
from quire.server.responses.background import BackgroundRun
from quire.server.responses.shelves import ShelfLimits, Shelves
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

    def item_ids(self) -> list[str]:
        """Return the ids of the items of its request and, once it is finished, of its output."""
        output = [] if self.response is None else self.response.output
        return [*(item["id"] for item in self.input_items), *(item.id for item in output)]

    def item(self, item_id: str) -> dict[str, Any] | None:
        """Return an item of its request or output, as clients receive it; None: it has none with
        this id."""
        for item in self.input_items:
            if item["id"] == item_id:
                return item
        output = [] if self.response is None else self.response.output
        return next((item.model_dump() for item in output if item.id == item_id), None)


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
        self._num_blocks = num_blocks
        self._shelves: Shelves[StoredResponse] = Shelves(
            ShelfLimits(limits.ttl_s, limits.max_responses, limits.max_bytes),
            now_s,
            on_drop=self._dropped,
        )
        self._holders: dict[tuple[TenantId, str], dict[str, StoredResponse]] = {}
        """The responses that contain an item, by tenant and item's id. Several may: clients that
        resend a conversation repeat the ids of its items."""

    def put(self, entry: StoredResponse) -> None:
        """Store a response."""
        self._shelves.put(entry)  # used first: the response may have run for longer than the ttl
        self._shelves.drop_old()
        self._count(entry, _num_bytes(entry))
        for item_id in entry.item_ids():
            self._holders.setdefault((entry.tenant, item_id), {})[entry.id] = entry
        self._shelves.make_room(entry)
        if entry.kept is not None:
            self._release_pages(entry.tenant, entry.kept.model)

    def grown(self, entry: StoredResponse) -> None:
        """Count the new events of a background response. Other responses are dropped to make room
        for them, as for all stored data; one response may not take all the room.

        Raises:
            QuotaExceeded: background responses need more than the tenant may store.
        """
        if not self.holds(entry):
            return  # deleted: its run is being cancelled
        assert entry.run is not None, "what grows runs"
        self._count(entry, entry.num_bytes + entry.run.num_bytes - entry.num_event_bytes)
        self._shelves.make_room(entry)
        num_bytes, limit = self._shelves.num_bytes(entry.tenant), self._limits.max_bytes
        if num_bytes > limit:
            raise QuotaExceeded(
                f"this response has {entry.num_bytes} bytes, and all that is stored and running "
                f"{num_bytes} of {limit} that one tenant may have: run fewer in the "
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
        entry = self._shelves.find(tenant, response_id)
        if entry is None:
            raise UnknownHandle(
                f"no response {response_id[:100]!r} is stored: it was not to be, has been deleted, "
                f"or has not been used for {self._limits.ttl_s:g} s"
            )
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
        self._shelves.drop_old()
        for entry in self._holders.get((tenant, item_id), {}).values():
            if (item := entry.item(item_id)) is not None:
                return item
        return None

    def delete(self, tenant: TenantId, response_id: str) -> None:
        """Delete a response; one that is running is cancelled. Raises ``UnknownHandle``."""
        self._shelves.drop(self.get(tenant, response_id))

    def holds(self, entry: StoredResponse) -> bool:
        """Return whether ``entry`` is still stored."""
        return self._shelves.holds(entry)

    def check_running(self, tenant: TenantId) -> None:
        """Raise ``QuotaExceeded`` if the tenant has too many background responses."""
        num_running = sum(entry.running for entry in self._shelves.of(tenant))
        if num_running >= self._limits.max_running:
            raise QuotaExceeded(
                f"{num_running} responses are running in the background, the most that one tenant "
                "may have: wait for one to end, or cancel one"
            )

    async def close(self) -> None:
        """End all background responses."""
        runs = [entry.run for entry in self._shelves if entry.run]
        for run in runs:
            run.cancel()
        for run in runs:
            await run.wait_ended()

    # -- bounds ------------------------------------------------------------------------------------

    def _count(self, entry: StoredResponse, num_bytes: int) -> None:
        self._shelves.count(entry, num_bytes)
        entry.num_event_bytes = 0 if entry.run is None else entry.run.num_bytes

    def _release_pages(self, tenant: TenantId, model: ModelId) -> None:
        limit = int(self._num_blocks(model) * self._limits.page_share)
        kept = [
            entry.kept
            for entry in self._shelves.of(tenant)
            if entry.kept is not None and not entry.kept.released and entry.kept.model == model
        ]
        num_pages = sum(one.num_pages for one in kept)
        for one in kept:
            if num_pages <= limit:
                return
            num_pages -= one.num_pages
            one.release()

    def _dropped(self, entry: StoredResponse) -> None:
        for item_id in entry.item_ids():
            holders = self._holders.get((entry.tenant, item_id), {})
            holders.pop(entry.id, None)
            if not holders:
                self._holders.pop((entry.tenant, item_id), None)
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
