"""Which command yields to which when blocks are short, and what a claim must not touch.

Owns the order of seniority, and with it the reason why some command always finishes. It moves
nothing (``reclaimer`` does) and does not know why blocks are wanted.

**The rule.** Commands have one order that never changes: program by age, then as issued. A command
that waits for a message and for no other command keeps what it has so far (the pages it names, the
chains that are computed again for it): no junior claim drops any of that. A chain does not drop
what its own command names either, except shallower canonical pages, last of all: deeper chains are
senior to shallower ones. Everything that is junior can be taken, even chains that are being
computed.

**Why it ends.** A claim that cannot be met touches nothing, and one that is met goes with a row:
every message makes progress for some command, and what that takes from others it takes from its
juniors. So take the progress of commands as a list with the most senior first: the first item that
a message changes goes up. Such a list rises only a bounded number of times, because each item has
an end. Three things are outside this argument, each of them bounded: a running decode that is
preempted has sampled a token since its sequence was opened; a command that waits for another one
(for a page that it appends to, for a sequence) may lose its pages meanwhile, once for each that
begins; and what is on the host may be dropped for any claim, but is kept once it is back on the
device. A message that would be empty although commands wait is never sent: a decode gives up its
seat, or else a command is refused (``unblocking``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from quire.control.memory.content import Content
from quire.control.programs.program import Entry, Program
from quire.control.scheduler.reclaiming.restorer import RestoreJob
from quire.core.ids import ProgramId


class Claim:
    """A claim of ``requester`` for blocks: for itself, or for ``job``, which runs for it.

    ``waiting``: commands that wait for a message, and for nothing else: those of a program, or all;
    ``jobs``: all of the engine. To be used at once: it reads what they name and hold now.
    """

    def __init__(
        self,
        requester: Entry,
        job: RestoreJob | None,
        waiting: Callable[[Program | None], Iterable[Entry]],
        jobs: Sequence[RestoreJob],
    ) -> None:
        self.requester = requester
        self._job = job
        self._mine = requester.seniority
        # A command that is about to run waits for no chain: those that still run for it may go.
        self._order = (*self._mine, -float("inf")) if job is None else job.order
        self._waiting = waiting
        self._jobs = jobs
        self._own = {*self._kept(requester.program), *map(id, self._named())}
        self._seniors: set[int] | None = None
        self._jobs_by_program: dict[ProgramId, list[RestoreJob]] = {}
        for held in self._jobs:
            self._jobs_by_program.setdefault(held.requester.program.id, []).append(held)

    def spares(self, content: Content) -> bool:
        """Whether ``content`` must stay: a waiting command that is senior needs it, or the
        requester itself."""
        if id(content) in self._own:
            return True
        if content.num_refs == 1:  # the usual case: only a junior refers to it
            return False
        if self._seniors is None:
            self._seniors = set(self._kept())
        return id(content) in self._seniors

    def _kept(self, program: Program | None = None) -> Iterator[int]:
        """What waiting commands senior to the claim keep (of ``program`` alone, if given), as ids
        of contents."""
        for entry in self._waiting(program):
            if entry.seniority < self._mine:
                yield from (id(page.content) for page in entry.pages if page.content is not None)
        for job in self._jobs:
            if program in (None, job.requester.program) and job.order < self._order:
                yield from (id(content) for content in job.contents)

    def _named(self) -> list[Content]:
        """The contents that the requester's command names."""
        return [page.content for page in self.requester.pages if page.content is not None]

    def restoring(self, program: Program) -> list[Content]:
        """The contents that jobs for ``program`` hold."""
        jobs = self._jobs_by_program.get(program.id, ())
        return [content for job in jobs for content in job.contents]

    def last_resort(self) -> list[Content]:
        """Contents that the requester's own command names, but that come behind the job in the
        order: they are computed again when the job is done."""
        if self._job is None:
            return []
        kept = set(self._kept())
        return [
            content
            for content in self._named()
            if content.canonical
            and content.tokens
            and content.depth < self._job.depth
            and id(content) not in kept
        ]
