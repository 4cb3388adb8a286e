"""Computing canonical pages again: dropped when every tier was full, or lost with an engine.

Owns the jobs. A job runs the tokens of a chain's missing pages once more, behind the pages that are
still there; whoever needs them waits, and finds them as if nothing had happened.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from quire.control.queues import Entry
from quire.control.resources.content import ChainNode, Content
from quire.control.resources.memory import Reclaim
from quire.control.resources.residency import secure
from quire.control.resources.table_entries import NO_BLOCK
from quire.control.scheduler.batch_builder import BatchBuilder, ForwardRow
from quire.control.scheduler.engine_state import EngineState
from quire.core.errors import PageLost


class RestoreJob:
    """One chain from its root: ``contents[i]`` holds the tokens from ``i * page_size`` on.

    ``offset``: how many tokens of the first missing content have been run. ``requester``: for whom
    memory is claimed. ``step``: the last message that carries a row of it.
    """

    __slots__ = ("contents", "missing", "number", "offset", "requester", "step")

    def __init__(self, contents: list[Content], requester: Entry, number: int) -> None:
        self.contents = contents
        self.missing = {id(content) for content in contents if content.is_lost}
        self.offset = 0
        self.requester = requester
        self.number = number
        self.step = -1

    @property
    def key(self) -> tuple[str, int]:
        """The name under which its page table is kept."""
        return ("restore", self.number)

    def first_missing(self) -> int | None:
        for index, content in enumerate(self.contents):
            if id(content) in self.missing:
                return index
        return None


class Restorer:
    """The jobs of one engine."""

    def __init__(self, engine: EngineState) -> None:
        self._engine = engine
        self._jobs: list[RestoreJob] = []
        self._num_jobs = 0
        self.num_restored_tokens = 0

    def request(self, requester: Entry, lost: Sequence[Content]) -> None:
        """Start jobs for contents that are lost and in no job yet.

        Raises:
            PageLost: the chain of one is longer than the whole pool.
        """
        by_key = {content.node.key: content for content in lost if content.node is not None}
        for content in sorted(lost, key=lambda content: -_depth(content)):
            if not content.is_restoring:
                self._start(content, by_key, requester)

    def _start(self, target: Content, by_key: dict[bytes, Content], requester: Entry) -> None:
        engine = self._engine
        nodes = [] if target.parent is None else target.parent.path()
        if len(nodes) + 1 > engine.memory.device.size:
            raise PageLost(
                f"a page was lost and computing it again takes {len(nodes) + 1} blocks of "
                f"{engine.memory.device.size}: write it anew"
            )
        adapter = target.adapter
        contents = [*(self._content_of(node, by_key, adapter) for node in nodes), target]
        for content in contents:
            engine.memory.retain(content)
            content.is_restoring = content.is_restoring or content.is_lost
        self._jobs.append(RestoreJob(contents, requester, self._num_jobs))
        self._num_jobs += 1

    def _content_of(self, node: ChainNode, by_key: dict[bytes, Content], adapter: int) -> Content:
        found = self._engine.memory.index.lookup(node) or by_key.get(node.key)
        if found is not None and not found.is_restoring:
            return found
        content = Content(node.parent, canonical=True, adapter=adapter)
        content.tokens = list(node.tokens)
        content.node = node
        return content

    def add_rows(self, builder: BatchBuilder, reclaim_for: Callable[[Entry], Reclaim]) -> None:
        """Add one row of every job that is not in the message yet, as the budget allows."""
        for job in list(self._jobs):
            if job.step == builder.step:
                continue
            if self._is_over(job):
                self._finish(job)
            elif builder.budget > 0 and not self._waits(job):
                self._add_row(job, builder, reclaim_for(job.requester))

    def sweep(self) -> None:
        """End the jobs that are over. For when no message is in flight and none will be sent: jobs
        end as messages are planned, and those whose requester is gone would hold their blocks."""
        for job in list(self._jobs):
            if self._is_over(job):
                self._finish(job)

    def _is_over(self, job: RestoreJob) -> bool:
        return job.first_missing() is None or self._is_broken(job) or not self._is_wanted(job)

    def _is_broken(self, job: RestoreJob) -> bool:
        """Something that the job builds on was dropped meanwhile: who needs it asks again."""
        return any(c.is_lost and id(c) not in job.missing for c in job.contents)

    def _waits(self, job: RestoreJob) -> bool:
        """Whether another job computes what this one builds on."""
        return any(c.is_restoring and id(c) not in job.missing for c in job.contents)

    def _is_wanted(self, job: RestoreJob) -> bool:
        """Whether a page or an export still means one of the missing contents."""
        return any(c.num_refs > 1 for c in job.contents if id(c) in job.missing)

    def _add_row(self, job: RestoreJob, builder: BatchBuilder, reclaim: Reclaim) -> None:
        first = job.first_missing()
        assert first is not None
        if job.contents[first].is_lost:
            job.offset = 0
        spans = self._spans(job, first, builder.budget)
        if not self._secure(job, first, spans, builder, reclaim):
            return
        engine, size = self._engine, self._engine.page_size
        position = first * size + job.offset
        row = ForwardRow(None, [], [], [], [], [], adapter=job.contents[first].adapter)
        words = [(1 << size) - 1] * first
        for content, start, stop in spans:
            assert content.block is not None
            row.tokens += content.tokens[start:stop]
            row.slots += range(content.block * size + start, content.block * size + stop)
            words.append((1 << stop) - 1)
            job.offset = stop
            if stop == len(content.tokens):
                self._note_done(job, content, builder)
        count = len(row.tokens)
        row.positions = list(range(position, position + count))
        row.embeds, row.outputs = [-1] * count, [-1] * count
        blocks = [NO_BLOCK if c.block is None else c.block for c in job.contents[: len(words)]]
        row.table = engine.tables.place(job.key, blocks, words, builder.step, engine.operations).id
        job.step = builder.step
        self.num_restored_tokens += count
        builder.restore(row, [content for content, _, _ in spans])

    def _secure(
        self,
        job: RestoreJob,
        first: int,
        spans: list[tuple[Content, int, int]],
        builder: BatchBuilder,
        reclaim: Reclaim,
    ) -> bool:
        """Bring what stands before the row to the device and bind blocks for what it writes."""
        memory = self._engine.memory
        written = [content for content, _, _ in spans]
        there = [c for c in (*job.contents[:first], *written) if not c.is_lost]
        new = [content for content in written if content.is_lost]
        # What stands further along the chain must not make way for what stands before it.
        for content in job.contents:
            memory.pin(content)
        pinned = secure(memory, there, len(new), reclaim)
        for content in job.contents:
            memory.unpin(content)
        if pinned is None:
            return False
        for content in new:
            memory.bind(content)
            memory.pin(content)
        builder.pins += pinned + new
        return True

    def _spans(self, job: RestoreJob, first: int, budget: int) -> list[tuple[Content, int, int]]:
        """(content, start, stop) of the tokens to run next: neighbours only."""
        spans: list[tuple[Content, int, int]] = []
        start = job.offset
        for content in job.contents[first:]:
            if id(content) not in job.missing or budget <= 0:
                break
            stop = min(len(content.tokens), start + budget)
            spans.append((content, start, stop))
            budget -= stop - start
            start = 0
        return spans

    def _note_done(self, job: RestoreJob, content: Content, builder: BatchBuilder) -> None:
        """All of ``content`` is in messages on their way: whoever comes behind may read it."""
        job.missing.discard(id(content))
        job.offset = 0
        content.is_restoring = False
        if content.node is not None:
            builder.filled.append(content)

    def _finish(self, job: RestoreJob) -> None:
        self._jobs.remove(job)
        engine = self._engine
        engine.tables.drop_queue(job.key, engine.operations)
        for content in reversed(job.contents):
            if id(content) in job.missing:
                content.is_restoring = False
                engine.memory.lose(content)
            engine.memory.release(content)

    def fail(self, contents: Iterable[Content]) -> None:
        """A row that computed ``contents`` could not be executed: they are lost as before."""
        for content in contents:
            self._engine.memory.lose(content)

    def forget_all(self) -> None:
        """The engine is gone, and every job with it; who still needs the pages asks again."""
        for job in list(self._jobs):
            self._finish(job)


def _depth(content: Content) -> int:
    return 0 if content.parent is None else content.parent.depth + 1


__all__ = ["RestoreJob", "Restorer"]
