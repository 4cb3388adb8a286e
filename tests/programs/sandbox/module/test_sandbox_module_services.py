"""Calls of a compiled guest by name: each has one answer, and what it took is not lost."""

from __future__ import annotations

from itertools import count

import pytest

from quire.core.calls import AskService, DropAnswer
from quire.core.errors import InvalidArgument, ProgramCancelled
from quire.programs.sandbox import messages as m
from quire.programs.sandbox.module.abi import GuestOp, RingCommand, Status
from quire.programs.sandbox.module.commands import service_call
from quire.programs.sandbox.module.memory import GuestMemory
from quire.programs.sandbox.module.services import ModuleServices

PULL = b'queue.pull{"queue":"q"}'
GET = b'store.get{"key":"k"}'


@pytest.fixture
def services() -> ModuleServices:
    return ModuleServices(count(1))


def ask(services: ModuleServices, text: bytes, id: int) -> AskService:
    name_bytes = text.index(b"{")
    entry = RingCommand(GuestOp.ASK_SERVICE, 0, id, name_bytes, 0, 0, 0, 0, len(text))
    return services.start(entry, GuestMemory(memoryview(text)))


def test_an_answer_goes_to_its_command(services: ModuleServices) -> None:
    first, second = ask(services, GET, 7), ask(services, GET, 9)
    event = services.event(m.ServiceAnswered(second.number, "v"))
    assert event is not None
    assert (event.command, event.payload, event.status) == (9, b'"v"', Status.OK)
    assert len(services) == 1
    assert services.event(m.ServiceAnswered(second.number, "again")) is None
    refused = services.event(m.ServiceRefused(first.number, ProgramCancelled("why").record()))
    assert refused is not None
    assert (refused.command, refused.payload, refused.status) == (7, b"why", Status.CANCELLED)


def test_what_was_taken_and_does_not_fit_is_put_back_once(services: ModuleServices) -> None:
    pull = ask(services, PULL, 7)
    event = services.event(m.ServiceAnswered(pull.number, "item"))
    assert event is not None
    services.undelivered(event)
    assert services.take_put_back() == [
        AskService(0, "queue.pull.undo", {"queue": "q", "answer": "item"})
    ]
    assert services.take_put_back() == []


def test_what_took_nothing_is_not_put_back(services: ModuleServices) -> None:
    found = services.event(m.ServiceAnswered(ask(services, GET, 7).number, "v"))
    assert found is not None
    services.undelivered(found)
    assert services.take_put_back() == []


def test_a_call_is_given_up_by_its_commands_id(services: ModuleServices) -> None:
    pull = ask(services, PULL, 7)
    assert services.drop(8) is None
    assert services.drop(7) == DropAnswer(pull.number)
    assert len(services) == 1, "its answer still comes"


def test_an_id_that_waits_is_not_used_again(services: ModuleServices) -> None:
    ask(services, PULL, 7)
    with pytest.raises(InvalidArgument, match="id 7 twice"):
        ask(services, PULL, 7)


def test_a_call_without_an_answer_waits_for_nothing(services: ModuleServices) -> None:
    assert ask(services, GET, 0).number == 0
    assert ask(services, GET, 0).number == 0
    assert len(services) == 0
    assert services.drop(0) is None


@pytest.mark.parametrize("arguments", [b"[1]", b"7", b'{"key":', b'{"key":"\xff"}'])
def test_arguments_are_a_json_object_and_nothing_else(arguments: bytes) -> None:
    text = b"store.get" + arguments
    entry = RingCommand(GuestOp.ASK_SERVICE, 0, 7, len(b"store.get"), 0, 0, 0, 0, len(text))
    with pytest.raises(InvalidArgument, match=r"ask_service 'store\.get': its arguments are not"):
        service_call(entry, 1, GuestMemory(memoryview(text)))


def test_a_call_without_arguments_has_none() -> None:
    entry = RingCommand(GuestOp.ASK_SERVICE, 0, 7, 4, 0, 0, 0, 0, 4)
    call = service_call(entry, 1, GuestMemory(memoryview(b"time")))
    assert call == AskService(1, "time", {})
