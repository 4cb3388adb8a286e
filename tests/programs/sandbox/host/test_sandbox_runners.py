"""Python instances that wait, and the machine's memory."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest

from quire.core.errors import CapacityError
from quire.programs.sandbox.host.machine_memory import KEPT_FREE_BYTES, MachineRoom
from quire.programs.sandbox.host.runners import Runners


class CountingTemplate:
    def __init__(self) -> None:
        self.num_made = 0

    def instantiate(self, memory_bytes: int) -> object:
        self.num_made += 1
        return object()


class Machine:
    """``left`` bytes, and how often somebody has asked."""

    def __init__(self, left: int | None) -> None:
        self.left = left
        self.num_asked = 0

    def available(self) -> int | None:
        self.num_asked += 1
        return self.left


def runners(machine: Machine) -> tuple[Runners, CountingTemplate]:
    template: Any = CountingTemplate()
    loop: Any = asyncio.get_running_loop()
    return Runners(loop, template, 0, MachineRoom(machine.available)), template


@pytest.mark.asyncio
async def test_a_guest_is_refused_while_the_machine_has_hardly_any_memory_left() -> None:
    machine = Machine(left=KEPT_FREE_BYTES - 1)
    some, template = runners(machine)
    for _ in range(2):
        with pytest.raises(CapacityError, match="511 MiB of memory left") as caught:
            some.take(1 << 20)
        assert caught.value.retriable
    assert template.num_made == 0
    machine.left = KEPT_FREE_BYTES
    some.take(1 << 20)
    assert template.num_made == 1


@pytest.mark.asyncio
async def test_memory_that_runs_out_meanwhile_is_noticed_but_not_asked_for_each_time() -> None:
    machine = Machine(left=1 << 40)
    some, template = runners(machine)
    some.take(1 << 20)
    machine.left = 0
    num_begun = template.num_made
    while machine.num_asked == 1:
        num_begun = template.num_made
        with suppress(CapacityError):
            some.take(1 << 20)
    assert 1 < template.num_made == num_begun <= 16


@pytest.mark.asyncio
async def test_a_system_that_does_not_tell_refuses_nobody() -> None:
    some, template = runners(Machine(left=None))
    some.take(1 << 20)
    assert template.num_made == 1
