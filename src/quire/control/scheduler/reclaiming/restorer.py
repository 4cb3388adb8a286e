"""Computes lost canonical pages again: dropped when every tier was full, or lost with an engine.

Owns the jobs. A job runs the tokens of a chain's missing pages once more, behind the pages that
still exist; commands that need them wait, and then find them as they were.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from quire.control.engines.builder import BatchBuilder, ForwardRow
from quire.control.engines.state import EngineState
from quire.control.memory.content import ChainNode, Content
from quire.control.memory.promises import Reclaim
from quire.control.memory.residency import secure
from quire.control.memory.table_entries import NO_BLOCK
from quire.control.programs.program import Entry, Program, Seniority
from quire.control.programs.states import ENDS
from quire.core.errors import PageLost


class RestoreJob:
    """One chain from its root: ``contents[i]`` holds the tokens from ``i * page_size`` on.

    ``offset``: how many tokens of the first missing content have been run. ``requester``: the
    command for which memory is claimed, the most senior that waits for one of the contents.
    ``message``: the number of the last message that carries a row of the job.
    """

    __slots__ = ("contents", "message", "missing", "number", "offset", "requester")

    def __init__(self, contents: list[Content], requester: Entry, number: int) -> None:
        self.contents = contents
        self.missing = {id(content) for content in contents if content.is_lost}
        self.offset = 0
        self.requester = requester
        self.number = number
        self.message = -1

    @property
    def key(self) -> tuple[str, int]:
        """The name under which its page table is kept."""
        return ("restore", self.number)

    @property
    def depth(self) -> int:
        return len(self.contents) - 1

    @property
    def order(self) -> Seniority:
        """The smaller, the more senior: as its requester; of one requester, the deepest first."""
        return (*self.requester.seniority, -self.depth, self.number)

    def first_missing(self) -> int | None:
        for index, content in enumerate(self.contents):
            if id(content) in self.missing:
                return index
        return None


class Restorer:
    """The jobs of one engine."""

    def __init__(self, engine: EngineState) -> None:
        self._engine = engine
        self._by_content: dict[int, RestoreJob] = {}
        self._in_message: list[Content] = []
        self._num_jobs = 0
        self.jobs: list[RestoreJob] = []

    def request(self, requester: Entry, lost: Sequence[Content]) -> None:
        """Start jobs for contents that are lost and in no job yet. A job that runs already is run
        for the most senior command that waits for it.

        Raises:
            PageLost: the chain of one is longer than the whole pool.
        """
        by_key = {content.node.key: content for content in lost if content.node is not None}
        for content in sorted(lost, key=lambda content: -content.depth):
            if not content.is_restoring:
                self._start(content, by_key, requester)
                continue
            job = self._by_content.get(id(content))
            if job is None:
                continue  # the message in preparation, or in flight, computes it
            if job.requester.state in ENDS or requester.seniority < job.requester.seniority:
                job.requester = requester

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
        job = RestoreJob(contents, requester, self._num_jobs)
        self._by_content.update(dict.fromkeys(job.missing, job))
        self.jobs.append(job)
        self._num_jobs += 1

    def _content_of(self, node: ChainNode, by_key: dict[bytes, Content], adapter: int) -> Content:
        found = self._engine.memory.index.lookup(node) or by_key.get(node.key)
        if found is not None and not found.is_restoring:
            return found
        content = Content(node.parent, canonical=True, adapter=adapter)
        content.tokens = list(node.tokens)
        content.node = node
        return content

    def add_rows(
        self,
        builder: BatchBuilder,
        reclaim_for: Callable[[Entry, RestoreJob], Reclaim],
        program: Program | None = None,
    ) -> None:
        """Add one row of every job (of those for ``program``, if given) that is not in the message
        yet, as the budget allows, the most senior first."""
        self._end_jobs(builder.serial)
        for job in sorted(self.jobs, key=lambda job: job.order):
            is_meant = program in (None, job.requester.program) and job.message != builder.serial
            # A claim for a job before it may have broken it.
            can_run = is_meant and not self._is_over(job) and not self._waits(job)
            if can_run and builder.budget > 0:
                self._add_row(job, builder, reclaim_for(job.requester, job))

    def sweep(self) -> None:
        """Let computed contents be used, as no message is in flight, and end jobs that are over,
        which would hold their blocks."""
        for content in self._in_message:
            content.is_restoring = False
        self._in_message = []
        self._end_jobs(None)

    def _end_jobs(self, message: int | None) -> None:
        """End the jobs that are over and not in ``message``. One that has lost a page on which
        it builds begins again at once, so that no junior claim takes what is left of its chain."""
        for job in list(self.jobs):
            if job.message == message or not self._is_over(job):
                continue
            begins_again = self._is_wanted(job)
            lost = [c for c in job.contents if c.is_lost or id(c) in job.missing]
            self._finish(job)
            if begins_again:
                self.request(job.requester, [content for content in lost if content.num_refs])

    def _is_over(self, job: RestoreJob) -> bool:
        return job.first_missing() is None or self._is_broken(job) or not self._is_wanted(job)

    def _is_broken(self, job: RestoreJob) -> bool:
        """Whether a page on which the job builds was dropped meanwhile: commands that need it
        request it again."""
        return any(c.is_lost and id(c) not in job.missing for c in job.contents)

    def _waits(self, job: RestoreJob) -> bool:
        """Whether another job computes a page on which this one builds."""
        return any(c.is_restoring and id(c) not in job.missing for c in job.contents)

    def _is_wanted(self, job: RestoreJob) -> bool:
        """Whether a command waits for it, and a page or an export still refers to a missing
        content."""
        has_use = any(c.num_refs > 1 for c in job.contents if id(c) in job.missing)
        return has_use and job.requester.state not in ENDS

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
        row.table = engine.tables.place(
            job.key, blocks, words, builder.serial, engine.operations
        ).id
        job.message = builder.serial
        builder.restore(row, [content for content, _, _ in spans], job.requester)

    def _secure(
        self,
        job: RestoreJob,
        first: int,
        spans: list[tuple[Content, int, int]],
        builder: BatchBuilder,
        reclaim: Reclaim,
    ) -> bool:
        """Bring the pages before the row to the device and bind blocks for those that it writes."""
        memory = self._engine.memory
        written = [content for content, _, _ in spans]
        there = [c for c in (*job.contents[:first], *written) if not c.is_lost]
        new = [content for content in written if content.is_lost]
        # Later pages of the chain must not make way for earlier ones.
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
        """(content, start, stop) of the tokens to run next; only contents that follow one
        another."""
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
        """Note that all of ``content`` is in messages that are planned or in flight. Rows of this
        message could read it, but not its operations, which run before: it can be used once the
        message has run."""
        job.missing.discard(id(content))
        del self._by_content[id(content)]
        job.offset = 0
        self._in_message.append(content)
        if content.node is not None:
            builder.filled.append(content)

    def _finish(self, job: RestoreJob) -> None:
        self.jobs.remove(job)
        engine = self._engine
        engine.tables.drop_queue(job.key, engine.operations)
        for content in reversed(job.contents):
            if id(content) in job.missing:
                del self._by_content[id(content)]
                content.is_restoring = False
                engine.memory.lose(content)
            engine.memory.release(content)

    def fail(self, contents: Iterable[Content]) -> None:
        """Mark ``contents`` as lost again, as the row that computed them failed."""
        for content in contents:
            self._engine.memory.lose(content)

    def forget_all(self) -> None:
        """End every job, as the engine is lost; commands that still need the pages request them
        again."""
        for job in list(self.jobs):
            self._finish(job)
        self.sweep()
