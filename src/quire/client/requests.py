"""The keyword arguments of ``Client.launch``, ``run``, ``query`` and ``query_events``, and the
bodies of their requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

from quire.client.folder import files_in
from quire.client.wire import code_body
from quire.core.errors import InvalidArgument
from quire.core.program_files import package_code


class LaunchSettings(TypedDict, total=False):
    """Keyword arguments of ``launch`` and ``run``. One that is ``None`` counts as not given."""

    named: Mapping[str, Any] | None
    """Arguments of the program by name: strings or other JSON values."""
    code: str | bytes | Path | None
    """The program itself, in place of a name: Python text, a WebAssembly module, the path of a file
    with either, or that of a folder with a ``main.py``."""
    seed: int | None
    """Seed of ``api.random`` in the program; by default the node chooses one."""
    priority: int | None
    """Lower runs first; default 0."""
    client_id: str | None
    """A name of your own in the process table."""
    parent: str | None
    """The session or program that starts it, by its id: both count as one family."""


class QuerySettings(TypedDict, total=False):
    """Keyword arguments of ``query`` and ``query_events``. One that is ``None`` counts as not
    given."""

    config: Mapping[str, Mapping[str, Any]] | None
    """Changes to the configuration of components, by the component's name."""
    priority: int | None
    """Lower runs first; default 0."""
    client_id: str | None
    """A name of your own in the process table."""
    parent: str | None
    """The session or program that starts it, by its id: both count as one family."""
    seed: int | None
    """Seed of the query's random numbers; by default the node chooses one."""
    deadline_s: float | None
    """Seconds after which the query ends with an error."""
    max_generated_tokens: int | None
    """Tokens that all models of the query may generate together; beyond them it ends with an
    error."""
    speculate: bool
    """Whether primitives that are likely to be needed run ahead of time, while the node is idle."""
    query_id: str | None
    """Under this id the node records the query. The same query with the same id continues where an
    earlier one was interrupted."""
    resume: bool
    """Whether to continue the query of ``query_id`` with its recorded inputs; ``query`` and
    ``config`` are then left out."""
    repeat_interrupted: bool
    """Whether a query that continues calls interrupted tools again, although they may have had an
    effect."""


def launch_body(
    program: str | None, args: Sequence[Any], settings: LaunchSettings
) -> dict[str, Any]:
    """Return the body of a launch.

    Raises:
        TypeError: there is no such keyword argument.
        InvalidArgument: neither or both of ``program`` and ``code`` are given, or see
            ``read_code``.
    """
    given = _given("launch", settings, LaunchSettings)
    code = given.pop("code", None)
    if (program is None) == (code is None):
        raise InvalidArgument("launch: give either program (a name) or code")
    chosen = {"program": program} if code is None else code_body(read_code(code))
    if (named := given.pop("named", None)) is not None:
        given["named_args"] = named
    return {**chosen, "args": list(args), **given}


def query_body(query: Mapping[str, Any] | None, settings: QuerySettings) -> dict[str, Any]:
    """Return the body of a query.

    Raises:
        TypeError: there is no such keyword argument.
    """
    given = _given("query", settings, QuerySettings)
    flags = {name for name in ("speculate", "resume", "repeat_interrupted") if not given.get(name)}
    body = {name: one for name, one in given.items() if name not in flags}
    return body if query is None else {"query": query, **body}


def read_code(code: str | bytes | Path) -> bytes:
    """Return the code of a program: the text or module itself, the content of the file, or that of
    the folder as one text. What the folder's ``requirements.txt`` names is downloaded by pip.

    Raises:
        InvalidArgument: it cannot be read, or see ``files_in``.
    """
    if isinstance(code, str):
        return code.encode("utf-8", "surrogatepass")
    if isinstance(code, bytes):
        return code
    try:
        return package_code(files_in(code)) if code.is_dir() else code.read_bytes()
    except OSError as exc:
        raise InvalidArgument(
            f"{code} cannot be read: {exc.strerror or exc}; name a Python file, a .wasm "
            "module or a folder"
        ) from exc


def _given(method: str, settings: Mapping[str, Any], known: type) -> dict[str, Any]:
    """Return those of ``settings`` that are not ``None``."""
    names = known.__annotations__
    for name in settings:
        if name not in names:
            raise TypeError(
                f"{method}() has no keyword argument {name!r}: it has {', '.join(names)}"
            )
    return {name: one for name, one in settings.items() if one is not None}
