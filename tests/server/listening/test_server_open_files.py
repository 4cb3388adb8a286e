"""A server may have as many connections as it says that it takes requests."""

from __future__ import annotations

import resource

import pytest

from quire.server.listening.open_files import allow_connections

UNBOUNDED = resource.RLIM_INFINITY


@pytest.mark.parametrize(
    ("limits", "granted", "is_enough"),
    [
        ((1024, 524288), 1536, True),
        ((1024, UNBOUNDED), 1536, True),
        ((1024, 1200), 1200, False),
        ((1024, 1024), 1024, False),
        ((20000, 20000), None, True),
        ((UNBOUNDED, UNBOUNDED), None, True),
    ],
)
def test_the_limit_is_raised_as_far_as_it_may_be(
    limits: tuple[int, int],
    granted: int | None,
    is_enough: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    set_to: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda kind: limits)
    monkeypatch.setattr(resource, "setrlimit", lambda kind, both: set_to.append(both))
    allow_connections(1024)
    assert set_to == ([] if granted is None else [(granted, limits[1])])
    assert ("lower --max-requests" in caplog.text) is not is_enough


def test_a_system_that_refuses_is_told_of(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(kind: int, limits: tuple[int, int]) -> None:
        raise ValueError("current limit exceeds maximum limit")

    monkeypatch.setattr(resource, "getrlimit", lambda kind: (256, UNBOUNDED))
    monkeypatch.setattr(resource, "setrlimit", refuse)
    allow_connections(1024)
    assert "may have 256 files open" in caplog.text
