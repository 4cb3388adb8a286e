"""A command with groups of options is, for typer, one with all of their options."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import pytest
import typer
from typer.main import get_command

from quire.cli.options.groups import given_options, names_of, with_groups


@dataclass(frozen=True, kw_only=True)
class Inner:
    depth: Annotated[int, typer.Option(min=1, help="How deep.")] = 3


@dataclass(frozen=True, kw_only=True)
class Outer:
    name: Annotated[str, typer.Option("--called", "-c", envvar="DIG_CALLED")]
    inner: Inner
    tags: Annotated[list[str] | None, typer.Option("--tag")] = None


@pytest.fixture
def seen() -> list[object]:
    return []


@pytest.fixture
def app(seen: list[object]) -> typer.Typer:
    made = typer.Typer(add_completion=False)

    @made.command()
    @with_groups
    def dig(where: Annotated[str, typer.Argument()], outer: Outer, is_slow: bool = False) -> None:
        """Dig."""
        seen.append((where, outer, is_slow))

    return made


def test_options_of_groups_stand_in_order_with_their_names_and_defaults(app: typer.Typer) -> None:
    dig = get_command(app)
    found = [(one.name, one.opts[0], one.required) for one in dig.params]
    assert found == [
        ("where", "where", True),
        ("name", "--called", True),
        ("depth", "--depth", False),
        ("tags", "--tag", False),
        ("is_slow", "--is-slow", False),
    ]
    assert dig.help == "Dig."


def test_a_command_gets_its_groups_with_what_was_given(
    app: typer.Typer, seen: list[object]
) -> None:
    app(
        ["here", "--called", "x", "--depth", "5", "--tag", "a", "--tag", "b"], standalone_mode=False
    )
    app(["there", "--called", "y", "--is-slow"], standalone_mode=False)
    assert seen == [
        ("here", Outer(name="x", inner=Inner(depth=5), tags=["a", "b"]), False),
        ("there", Outer(name="y", inner=Inner(), tags=None), True),
    ]


def test_options_that_stand_on_the_command_line_are_told_in_their_spelling_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = typer.Typer(add_completion=False)
    given: list[dict[str, str]] = []

    @made.command()
    @with_groups
    def dig(context: typer.Context, outer: Outer, is_slow: bool = False) -> None:
        given.append(given_options(context, names_of(Outer)))

    made(["-c", "x", "--is-slow", "--tag", "a"], standalone_mode=False)
    monkeypatch.setenv("DIG_CALLED", "y")
    made(["--depth", "3"], standalone_mode=False)
    assert given == [{"name": "--called", "tags": "--tag"}, {"depth": "--depth"}]
    assert names_of(Inner, Outer) == {"name", "depth", "tags"}
