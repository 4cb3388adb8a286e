"""Options in groups: a command takes dataclasses, and typer sees the options that are their fields.

A group has the options of one concept and makes the configuration that they describe, so that a
command with many options stays short, and commands share groups. Must not know any option.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import wraps
from inspect import Parameter, Signature, signature
from typing import Any, get_type_hints

import typer


def with_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Return ``command`` with the fields of its parameters that are dataclasses in place of these;
    other parameters stay.

    A field is annotated like an option of typer, and its default is the option's; or it is a group
    itself.
    """
    hints = get_type_hints(command, include_extras=True)
    parameters = signature(command).parameters.values()
    groups = {one.name: hints[one.name] for one in parameters if _is_group(hints[one.name])}
    options: list[Parameter] = []
    for one in parameters:
        if one.name in groups:
            options += _options(groups[one.name])
        else:
            options.append(one.replace(annotation=hints[one.name], kind=Parameter.KEYWORD_ONLY))

    @wraps(command)
    def call(**given: Any) -> None:
        made = {name: _made(group, given) for name, group in groups.items()}
        command(**given, **made)

    call.__signature__ = Signature(options)  # type: ignore[attr-defined]
    call.__annotations__ = {one.name: one.annotation for one in options}
    return call


def names_of(*groups: type) -> frozenset[str]:
    """Return the names of all options of ``groups``, as ``given_options`` takes them."""
    return frozenset(one.name for group in groups for one in _options(group))


def given_options(context: typer.Context, names: Collection[str]) -> dict[str, str]:
    """Return those of ``names`` that were given on the command line, in the command's order, with
    their spelling there; environment variables are not counted."""
    given = {}
    for one in context.command.params:
        source = context.get_parameter_source(one.name or "")
        if one.name in names and source is not None and source.name == "COMMANDLINE":
            given[one.name] = max(one.opts, key=len)
    return given


def _is_group(hint: Any) -> bool:
    return isinstance(hint, type) and is_dataclass(hint)


def _options(group: type) -> Iterator[Parameter]:
    """Yield the options of a group and of the groups in it, in order."""
    hints = get_type_hints(group, include_extras=True)
    for one in fields(group):
        hint = hints[one.name]
        if _is_group(hint):
            yield from _options(hint)
        else:
            yield Parameter(
                one.name, Parameter.KEYWORD_ONLY, default=_default(one), annotation=hint
            )


def _default(option: Field[Any]) -> Any:
    return Parameter.empty if option.default is MISSING else option.default


def _made(group: type, given: dict[str, Any]) -> Any:
    """Return the group with its values, which are taken out of ``given``."""
    hints = get_type_hints(group, include_extras=True)
    values = {
        one.name: _made(hints[one.name], given)
        if _is_group(hints[one.name])
        else given.pop(one.name)
        for one in fields(group)
    }
    return group(**values)
