"""Work queues against plain lists: whatever the order of pushes, pulls, cancellations and time."""

from __future__ import annotations

import asyncio
from collections import deque

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from quire.core.ids import TenantId
from quire.programs.services.work_queues import QueueLimits, WorkQueues
from quire.testing import VirtualClock

TENANT = TenantId("tenant")
NAMES = st.sampled_from(["a", "b"])
CAPACITY = 3


class WorkQueueMachine(RuleBasedStateMachine):
    """Nobody waits for a message that is there, no message is taken twice, lost or out of order."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.clock = VirtualClock()
        self.queues = WorkQueues(self.clock, QueueLimits(max_messages=CAPACITY))
        self.number = 0
        self.waiting: dict[str, deque[tuple[str, float]]] = {"a": deque(), "b": deque()}
        """Messages in the queue, with the time of their end."""
        self.pulls: dict[str, list[asyncio.Task[str]]] = {"a": [], "b": []}
        self.taken: dict[str, str] = {}

    def settle(self) -> None:
        async def turns() -> None:
            for _ in range(12):
                await asyncio.sleep(0)

        self.runner.run(turns())

    def expire(self, name: str) -> None:
        now_s = self.clock.now_s()
        self.waiting[name] = deque(m for m in self.waiting[name] if m[1] > now_s)

    @rule(name=NAMES, ttl_s=st.sampled_from([1.0, 10.0]))
    def push(self, name: str, ttl_s: float) -> None:
        self.expire(name)
        if len(self.waiting[name]) >= CAPACITY:
            return
        self.number += 1
        message = str(self.number)
        self.runner.run(self.queues.push(TENANT, name, message, ttl_s))
        self.waiting[name].append((message, self.clock.now_s() + ttl_s))
        self.settle()
        self.collect(name)

    @rule(name=NAMES)
    def pull(self, name: str) -> None:
        self.expire(name)

        async def start() -> asyncio.Task[str]:
            return asyncio.create_task(self.queues.pull(TENANT, name))

        self.pulls[name].append(self.runner.run(start()))
        self.settle()
        self.collect(name)

    @rule(name=NAMES, index=st.integers(0, 3))
    def cancel(self, name: str, index: int) -> None:
        if index < len(self.pulls[name]):
            self.pulls[name].pop(index).cancel()
            self.settle()

    @rule(name=NAMES)
    def put_back(self, name: str) -> None:
        mine = [message for message, queue in self.taken.items() if queue == name]
        if mine and not self.pulls[name]:
            self.expire(name)
            del self.taken[mine[-1]]
            self.queues.put_back(TENANT, name, mine[-1])
            ends_s = self.clock.now_s() + self.queues.limits.max_ttl_s
            self.waiting[name].appendleft((mine[-1], ends_s))

    @rule(seconds=st.sampled_from([0.5, 2.0, 20.0]))
    def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds)

    def collect(self, name: str) -> None:
        """Pulls that have ended, in their order, have the oldest messages in theirs."""
        done = [pull for pull in self.pulls[name] if pull.done()]
        assert done == self.pulls[name][: len(done)], "a later pull was served first"
        for pull in done:
            message, _ = self.waiting[name].popleft()
            assert pull.result() == message
            self.taken[message] = name
        self.pulls[name] = self.pulls[name][len(done) :]

    @invariant()
    def nobody_waits_beside_a_message(self) -> None:
        for name in ("a", "b"):
            self.expire(name)
            assert not (self.pulls[name] and self.waiting[name])
            assert self.queues.num_messages(TENANT, name) >= len(self.waiting[name])

    @invariant()
    def an_unused_queue_is_forgotten(self) -> None:
        if not any(self.waiting.values()) and not any(self.pulls.values()):
            held = self.queues._tenants.get(TENANT)
            queues = held.queues.values() if held is not None else ()
            assert all(queue.messages for queue in queues), "an empty queue is kept"

    def teardown(self) -> None:
        for pulls in self.pulls.values():
            for pull in pulls:
                pull.cancel()
        self.settle()
        self.runner.close()


TestWorkQueueMachine = WorkQueueMachine.TestCase
