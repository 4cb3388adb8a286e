"""One page of a list, as OpenAI's clients paginate: ``after`` an id, at most ``limit`` items."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from quire.server.errors.errors import HttpError

T = TypeVar("T")


class ListPage(Generic[T]):
    """A page of ``items``, in their order; ``id_of`` returns an item's id.

    Raises:
        HttpError: 400; no item has the id ``after``.
    """

    def __init__(
        self, items: Sequence[T], id_of: Callable[[T], str], after: str | None, limit: int
    ) -> None:
        if after is not None:
            places = [index for index, item in enumerate(items) if id_of(item) == after]
            if not places:
                raise HttpError(
                    400, f"after: no item {after[:100]!r}", code="invalid_argument", param="after"
                )
            items = items[places[0] + 1 :]
        self.items = list(items[:limit])
        self.first_id = id_of(self.items[0]) if self.items else None
        self.last_id = id_of(self.items[-1]) if self.items else None
        self.has_more = len(items) > limit
