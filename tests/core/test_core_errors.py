"""The exception tree: stable codes, one class each, exact over the wire."""

from __future__ import annotations

import msgspec
import pytest

from quire.core import errors
from quire.core.errors import CapacityError, ErrorRecord, QuireError, from_record


def tree(root: type[QuireError]) -> list[type[QuireError]]:
    return [root, *(leaf for child in root.__subclasses__() for leaf in tree(child))]


ALL = [cls for cls in tree(QuireError) if cls.__module__ == errors.__name__]


@pytest.mark.parametrize("cls", ALL, ids=lambda cls: cls.__name__)
def test_an_error_comes_back_as_the_same_class(cls: type[QuireError]) -> None:
    error = cls("what happened, 3 of 4: the remedy", num_free=3, name="x")
    wire = msgspec.msgpack.encode(error.record())
    back = from_record(msgspec.msgpack.decode(wire, type=ErrorRecord))
    assert type(back) is cls
    assert (back.message, back.details) == (error.message, error.details)
    assert str(back) == error.message
    assert back.record() == error.record()


def test_codes_are_unique_and_the_module_names_every_class() -> None:
    assert len({cls.code for cls in ALL}) == len(ALL)
    assert errors.__doc__ is not None
    assert all(cls.__name__ in errors.__doc__ for cls in ALL)


LOST = (errors.EngineLost, errors.PageLost, errors.TransferFailed, errors.RequestInterrupted)


def test_capacity_and_what_was_lost_are_retriable_and_bad_requests_are_not() -> None:
    for cls in ALL:
        is_retriable = issubclass(cls, (CapacityError, *LOST))
        assert cls("x").record().retriable is is_retriable


def test_an_unknown_code_is_a_plain_error() -> None:
    error = from_record(ErrorRecord("of_the_future", "new", False, {"a": 1}))
    assert type(error) is QuireError
    assert error.details == {"a": 1}
