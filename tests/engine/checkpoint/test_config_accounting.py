"""Unread keys are harmless, refused or named; derived readers share which keys were read."""

from __future__ import annotations

from typing import Any

import pytest

from quire.core.errors import UnsupportedModel
from quire.engine.checkpoint.config_accounting import KeyScope, absent, account, merged, names
from quire.engine.checkpoint.config_reader import ConfigReader

SCOPE = KeyScope(
    harmless={"a reason": names("note writer")},
    refused={"mirror": absent("mirrored rows", 0, False)},
    sections={"inner": KeyScope(harmless={"a reason": names("colour")})},
)


def reader(**values: Any) -> ConfigReader:
    return ConfigReader(values, "config.json")


def test_keys_that_are_read_or_harmless_give_no_warning() -> None:
    config = reader(size=3, note="x", writer=None)
    config.integer("size", 8)
    assert account(config, SCOPE) == []


def test_unknown_keys_are_named_with_their_value() -> None:
    (warning,) = account(reader(size=3, shape=None), SCOPE)
    assert "size = 3" in warning
    assert "shape = None" in warning
    assert "config.json" in warning


def test_asking_whether_a_key_is_there_does_not_read_it() -> None:
    config = reader(size=3)
    assert config.has("size")
    assert len(account(config, SCOPE)) == 1
    unset = reader(size=None)
    assert not unset.has("size")
    assert account(unset, SCOPE) == [], "a null says no more than the answer did"


@pytest.mark.parametrize("value", [None, 0, False, [], {}, ""])
def test_refused_keys_may_have_neutral_values(value: Any) -> None:
    assert account(reader(mirror=value), SCOPE) == []


@pytest.mark.parametrize("value", [1, True, 0.5, ["x"], {"a": 1}, "0"])
def test_values_that_change_results_are_refused_by_name(value: Any) -> None:
    with pytest.raises(UnsupportedModel, match=r"mirror = .*mirrored rows"):
        account(reader(mirror=value), SCOPE)


def test_a_refused_key_may_be_read_by_a_family_that_serves_it() -> None:
    config = reader(mirror=7)
    assert config.integer("mirror", 8) == 7
    assert account(config, SCOPE) == []


def test_derived_readers_share_which_keys_were_read() -> None:
    config = reader(size=3, shape=4, depth=5)
    config.over({"width": 1}).integer("size", 8)
    config.without("depth").integer("shape", 8)
    (warning,) = account(config, SCOPE)
    assert "depth = 5" in warning
    assert "size" not in warning
    config.set_aside("depth")
    assert account(config, SCOPE) == []


def test_objects_within_are_judged_by_their_own_scope() -> None:
    config = reader(inner={"colour": 1, "size": 2, "note": 3})
    for _ in range(2):  # the same object at every call
        inner = config.section("inner")
        assert inner is not None
    inner.integer("size", 8)
    (warning,) = account(config, SCOPE)
    assert "config.json: inner" in warning
    assert "note = 3" in warning
    assert "size" not in warning
    assert "colour" not in warning


def test_long_lists_and_values_are_cut() -> None:
    (warning,) = account(reader(**{f"k{i}": "x" * 10_000 for i in range(50)}), SCOPE)
    assert len(warning) < 1500
    assert "and 42 more" in warning


def test_merged_scopes_know_the_keys_of_both() -> None:
    both = merged([SCOPE, KeyScope(harmless={"a reason": names("other")})])
    assert account(reader(note=1, other=2, mirror=0), both) == []
