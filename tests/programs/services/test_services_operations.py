"""Services of a program are made when it asks for the first time, and end with it."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from quire.core.errors import InvalidArgument, ProgramTerminated
from quire.programs.services.operations import ProgramService, ProgramServices, operation


class Numbers(ProgramService):
    def __init__(self) -> None:
        self.num_closed = 0

    def close(self) -> None:
        self.num_closed += 1

    @operation("double")
    async def double(self, number: int) -> int:
        return 2 * number


class Maker:
    def __init__(self) -> None:
        self.made: list[Numbers] = []

    def __call__(self) -> Iterable[ProgramService]:
        self.made.append(Numbers())
        yield self.made[-1]


async def test_they_are_made_once_and_only_when_asked_for() -> None:
    make = Maker()
    services = ProgramServices(make)
    assert make.made == []
    assert [await services.ask("double", {"number": number}) for number in (2, 3)] == [4, 6]
    assert len(make.made) == 1
    services.close()
    services.close()
    assert make.made[0].num_closed == 1


async def test_the_end_makes_none() -> None:
    make = Maker()
    services = ProgramServices(make)
    services.close()
    with pytest.raises(ProgramTerminated, match="double is no longer executed"):
        await services.ask("double", {"number": 1})
    assert make.made == []


async def test_what_is_there_is_told_and_checked() -> None:
    services = ProgramServices(Maker())
    with pytest.raises(InvalidArgument, match="no service 'half'; it has double"):
        await services.ask("half", {})
    with pytest.raises(InvalidArgument, match="double: Expected `int`"):
        await services.ask("double", {"number": "2"})


async def test_what_was_open_is_closed_to_calls_too() -> None:
    make = Maker()
    services = ProgramServices(make)
    await services.ask("double", {"number": 1})
    services.close()
    with pytest.raises(ProgramTerminated):
        await services.ask("double", {"number": 1})
