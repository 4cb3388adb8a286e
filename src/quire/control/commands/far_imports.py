"""Imports of exports that live on another engine: what of each must come, and what has arrived.

Owns the imports that are under way and how an export's slots lie in the pages of the importing
engine. The K and V come through a lease of that engine, which ``control.bringing`` opens and has
filled; here they become pages.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from quire.control.engines.leasing import end_lease
from quire.control.engines.state import EngineState
from quire.control.memory.content import Content
from quire.control.memory.exports import Export, PageSnapshot
from quire.control.memory.leases import Lease, LeaseTable
from quire.control.memory.pages import Page
from quire.control.programs.program import CommandQueue, Entry
from quire.core.errors import ErrorRecord, InvalidArgument, TransferFailed, from_record
from quire.core.ids import EngineId
from quire.core.lease_commands import LeaseName


@dataclass(frozen=True, slots=True)
class ToCome:
    """The form of an export on another engine. ``pages``: its slots in pages of that engine,
    without contents; ``tokens``: those of its first slots, as far as they are a known prefix,
    computed with ``adapter``; ``opaque``: the number of slots of each further page that has any."""

    pages: tuple[PageSnapshot, ...]
    tokens: list[int]
    opaque: list[int]
    adapter: str | None

    @property
    def num_slots(self) -> int:
        return len(self.tokens) + sum(self.opaque)


@dataclass(slots=True, eq=False)
class FarImport:
    """One import, from its turn in its queue to its end. ``queues``: control's own, on both
    engines. ``lease``: None until it is open. ``error``: why the K and V cannot come."""

    entry: Entry
    export: Export
    engine: EngineId
    to_come: ToCome
    queues: list[CommandQueue] = field(default_factory=list)
    is_asked_for: bool = False
    lease: LeaseName | None = None
    error: ErrorRecord | None = None


class FarImports:
    """The imports that are under way. ``engines`` and ``leases`` are shared with the controller;
    ``control.bringing`` takes ``wanted`` (to be brought) and ``over`` (ended)."""

    def __init__(self, engines: Mapping[EngineId, EngineState], leases: LeaseTable) -> None:
        self._engines = engines
        self._leases = leases
        self._under_way: dict[Entry, FarImport] = {}
        self.wanted: list[FarImport] = []
        self.over: list[FarImport] = []

    def is_under_way(self, far: FarImport) -> bool:
        return self._under_way.get(far.entry) is far

    def under_way(self, entry: Entry) -> FarImport | None:
        """The import that runs for ``entry``; None if there is none, or its program has moved."""
        far = self._under_way.get(entry)
        if far is not None and far.engine != entry.queue.engine:
            self.ended(entry)
            return None
        return far

    def begin(self, entry: Entry, export: Export) -> FarImport:
        """Begin the import of ``export``, which lives on another engine than ``entry``'s queue.

        Raises:
            InvalidArgument: the engines compute different K and V, or one exchanges none.
        """
        source, target = self._engines[export.engine], self._engines[entry.queue.engine]
        _check_exchange(export, source, target)
        far = FarImport(entry, export, target.id, to_come(export, source, target))
        self._under_way[entry] = far
        return far

    def has_arrived(self, far: FarImport) -> bool:
        """Return whether all K and V have arrived; the first call asks for them.

        Raises:
            QuireError: the import has failed.
        """
        if far.error is not None:
            raise from_record(far.error)
        if not far.to_come.num_slots:
            return True
        if not far.is_asked_for:
            far.is_asked_for = True
            self.wanted.append(far)
        if far.lease is None:
            return False
        lease = self._leases.get(far.lease.number)
        if lease is None:
            export = far.export
            raise TransferFailed(
                f"export {export.name!r} did not get from engine {export.engine} to {far.engine}: "
                "the memory for it was taken back there: import it again"
            )
        return lease.is_complete

    def map(self, far: FarImport, pages: Sequence[Page]) -> None:
        """Give ``pages`` what has arrived: contents, positions and masks. Then end the lease."""
        engine = self._engines[far.engine]
        lease = None if far.lease is None else self._leases.get(far.lease.number)
        contents = iter(_held(lease))
        for page, snapshot in zip(pages, far.to_come.pages, strict=False):
            page.fill, page.mask = snapshot.fill, snapshot.mask
            page.positions = snapshot.positions
            if snapshot.fill:
                page.content = engine.memory.retain(next(contents))
                page.content.note_family(far.entry.program.family)
        if lease is not None:
            end_lease(engine, self._leases, lease, "was taken")

    def ended(self, entry: Entry) -> None:
        """Note that ``entry``, an import, has ended."""
        far = self._under_way.pop(entry, None)
        if far is not None:
            self.over.append(far)


def _held(lease: Lease | None) -> list[Content]:
    return [] if lease is None else lease.contents


def can_come(source: EngineState, target: EngineState) -> bool:
    """Whether exports of ``source`` can be imported on ``target``."""
    one, other = source.info, target.info
    if source is target:
        return True
    return one.content == other.content and bool(one.data_address and other.data_address)


def _check_exchange(export: Export, source: EngineState, target: EngineState) -> None:
    if source.info.content != target.info.content:
        raise InvalidArgument(
            f"export {export.name!r} has K and V of {source.info.model!r} on engine {source.id} "
            f"({source.info.content!r}), and engine {target.id} computes those of "
            f"{target.info.model!r} ({target.info.content!r}): import it on a queue of the same "
            "model, in the same form"
        )
    without = [engine.id for engine in (source, target) if not engine.info.data_address]
    if without:
        raise InvalidArgument(
            f"export {export.name!r} lives on engine {source.id}, this queue on {target.id}, and "
            f"{' and '.join(without)} exchanges no K and V: import it there, or give the engines "
            "data addresses"
        )


def to_come(export: Export, source: EngineState, target: EngineState) -> ToCome:
    """The form that ``export`` of ``source`` takes in pages of ``target``."""
    tokens, index = _known_prefix(export.pages, source.page_size)
    adapter = None if index < 0 else source.info.adapters[index].name
    if not _has_adapter(source, target, index):
        tokens, adapter = [], None
    size = target.page_size
    pages = export.pages if size == source.page_size else tuple(_repaged(export.pages, size))
    fills = [page.fill for page in pages if page.fill]
    if len(tokens) < sum(fills):
        del tokens[len(tokens) // size * size :]
    return ToCome(pages, tokens, fills[-(-len(tokens) // size) :], adapter)


def _known_prefix(pages: Sequence[PageSnapshot], size: int) -> tuple[list[int], int]:
    """The tokens of the first slots, as far as they are plain text from position 0 on, and the
    adapter that has computed them."""
    tokens: list[int] = []
    parent, adapter = None, -1
    for page in pages:
        content = page.content
        if content is None or not content.canonical or len(content.tokens) < page.fill:
            break
        if content.parent is not parent and (
            content.parent is None or parent is None or content.parent.key != parent.key
        ):
            break
        if tokens and content.adapter != adapter:
            break
        adapter = content.adapter
        tokens += content.tokens[: page.fill]
        parent = content.node
        if page.fill < size or parent is None:
            break
    return tokens, adapter


def _has_adapter(source: EngineState, target: EngineState, index: int) -> bool:
    if index < 0:
        return True
    used = source.info.adapters[index]
    return any((one.name, one.digest) == (used.name, used.digest) for one in target.info.adapters)


def _repaged(pages: Sequence[PageSnapshot], size: int) -> Iterator[PageSnapshot]:
    """The written slots of ``pages``, without gaps, in pages of ``size`` slots."""
    positions = [position for page in pages for position in page.positions]
    shown = [bool(page.mask >> slot & 1) for page in pages for slot in range(page.fill)]
    for start in range(0, len(positions), size):
        fill = min(size, len(positions) - start)
        hidden = sum(1 << slot for slot in range(fill) if not shown[start + slot])
        yield PageSnapshot(None, fill, tuple(positions[start : start + fill]), ~hidden)
