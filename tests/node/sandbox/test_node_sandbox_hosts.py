"""Which hosts a node leaves to the programs that ask for them."""

from __future__ import annotations

import pytest

from quire.node.sandbox.runtime import allowed_hosts


@pytest.mark.parametrize(
    ("wanted", "allowed", "expected"),
    [
        (("a.org",), None, ("a.org",)),
        (("a.org", "b.org"), ("b.org",), ("b.org",)),
        (("api.a.org",), ("*.a.org",), ("api.a.org",)),
        (("*",), ("*.a.org", "b.org"), ("*.a.org", "b.org")),
        (("*.a.org",), ("api.a.org", "b.org"), ("api.a.org",)),
        (("a.org", "nota.org"), ("*.a.org",), ()),
        (("*",), None, ("*",)),
        ((), ("*",), ()),
        (("a.org",), (), ()),
    ],
)
def test_a_program_reaches_what_both_allow(
    wanted: tuple[str, ...], allowed: tuple[str, ...] | None, expected: tuple[str, ...]
) -> None:
    assert allowed_hosts(wanted, allowed) == expected
