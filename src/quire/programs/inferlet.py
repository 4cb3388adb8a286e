"""A program before it runs: its entry, its manifest, and how files become programs.

Owns the ``@inferlet`` decorator and loading by path. Must not know how a program is executed.
"""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from quire.core.errors import InvalidArgument, TraitMissing
from quire.core.ids import ProgramForm
from quire.core.quotas import Quotas
from quire.core.traits import VERSIONS, Trait
from quire.programs.capabilities import Capabilities
from quire.programs.parameters import Parameter, parameters_of
from quire.programs.source_file import source_spec
from quire.programs.tracebacks import one_line, own_traceback

Main = Callable[..., Awaitable[Any]]
"""``async def main(api, ...)``; returns a string or another JSON value. Its parameters after
``api`` are text, or have the annotated types (``n: int = 3``)."""


@dataclass(frozen=True, slots=True)
class Inferlet:
    """A program and its manifest.

    ``traits``: required traits, with the version that the program was written for; checked at
    launch. ``quotas``: limits that it asks for; the tenant's own limits still hold. ``hosts``:
    hosts that it reaches over HTTP (``*.example.org`` for subdomains); ``topics``: its topics and
    work queues; ``stores``: its namespaces of the store; ``mcp_servers``: servers of the node that
    it uses (``news.*``: all that begin with it). It can reach no others, natively or sandboxed.
    ``restartable``: if its engine is lost, the program is run again and receives the recorded
    answers of its earlier run; for programs whose behaviour depends on the API alone. ``source``:
    its file, for tracebacks. ``folder``: the directory of its other files, for a trusted program of
    several files. ``text``: the text of its file, for one that a client has sent. ``form``: its
    form in the process table. ``needs_model``: it is not launched before a model is loaded.
    """

    name: str
    main: Main
    description: str = ""
    traits: Mapping[Trait, int] = field(default_factory=dict)
    quotas: Quotas = Quotas()
    hosts: tuple[str, ...] = ()
    topics: tuple[str, ...] = ()
    stores: tuple[str, ...] = ()
    mcp_servers: tuple[str, ...] = ()
    restartable: bool = False
    source: str | None = None
    folder: str | None = None
    text: str | None = None
    form: ProgramForm = "inferlet"
    needs_model: bool = True

    @property
    def capabilities(self) -> Capabilities:
        """The capabilities in its manifest. They apply to native programs as well, although these
        are trusted, so that a program behaves the same natively and in the sandbox."""
        return Capabilities(self.hosts, self.topics, self.stores, self.mcp_servers)

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """The arguments that it takes.

        Raises:
            InvalidArgument: an annotation that cannot be read.
        """
        return parameters_of(self.main)

    def __call__(self, *args: Any, **kwargs: Any) -> Awaitable[Any]:
        """Call the entry directly, as from another program."""
        return self.main(*args, **kwargs)


def inferlet(
    name: str | None = None,
    *,
    description: str | None = None,
    traits: Mapping[Trait | str, int] | None = None,
    quotas: Quotas | None = None,
    hosts: Sequence[str] = (),
    topics: Sequence[str] = (),
    stores: Sequence[str] = (),
    mcp_servers: Sequence[str] = (),
    restartable: bool = False,
) -> Callable[[Main], Inferlet]:
    """Make a program of ``async def main(api, *args)``.

    ``name`` defaults to the function's name, ``description`` to its docstring.

    Raises:
        InvalidArgument: not an ``async def``.
        TraitMissing: a trait or version that this release does not have.
    """
    if callable(name):
        shown = getattr(name, "__name__", name)
        raise InvalidArgument(f"@inferlet on {shown!r} has no parentheses: write @inferlet()")
    check_versions(name or "the program", traits or {})
    needed = {Trait(key): version for key, version in (traits or {}).items()}

    def wrap(main: Main) -> Inferlet:
        if not inspect.iscoroutinefunction(main):
            raise InvalidArgument(
                f"@inferlet on {getattr(main, '__name__', main)!r}: the entry must be "
                "'async def main(api, *args)'"
            )
        return Inferlet(
            name=name or main.__name__,
            main=main,
            description=inspect.cleandoc(description or main.__doc__ or ""),
            traits=needed,
            quotas=quotas or Quotas(),
            hosts=tuple(hosts),
            topics=tuple(topics),
            stores=tuple(stores),
            mcp_servers=tuple(mcp_servers),
            restartable=restartable,
            source=inspect.getsourcefile(main),
        )

    return wrap


StatedTraits = Mapping[Trait, int] | Mapping[str, int] | Mapping[Trait | str, int]
"""Traits, each with the version that a program was written for."""


def check_versions(name: str, traits: StatedTraits) -> None:
    """Raise ``TraitMissing`` unless this release has the trait versions that program ``name``
    requires."""
    for trait, version in traits.items():
        if trait not in VERSIONS:
            raise TraitMissing(
                f"program {name!r} needs the trait {str(trait)!r}, which this release does not "
                f"have; it has {', '.join(VERSIONS)}: run it on a release that has it"
            )
        if not 1 <= version <= VERSIONS[Trait(trait)]:
            raise TraitMissing(
                f"program {name!r} needs version {version} of the trait {trait}; this release has "
                f"1 to {VERSIONS[Trait(trait)]}: run it on a newer release"
            )


def load_inferlet(
    path: Path, *, shown_as: str | None = None, folder: Path | None = None
) -> Inferlet:
    """The ``@inferlet`` of a Python file, which must have exactly one. The file's code is executed
    and trusted.

    ``shown_as``: the name of the file in errors, if the caller does not know its path. ``folder``:
    the directory of its other modules, if it has some; their lines are in tracebacks too.

    Raises:
        InvalidArgument: no such file, an error while importing it, or no (or several) entries.
    """
    path = path.resolve()
    shown = shown_as or str(path)
    within = None if folder is None else str(folder.resolve())
    if not path.is_file():
        raise InvalidArgument(f"no file {shown}: name a Python file or a library program")
    module_name = f"quire_inferlet_{hashlib.sha256(bytes(path)).hexdigest()[:16]}"
    spec = source_spec(module_name, path)
    if spec is None or spec.loader is None:
        raise InvalidArgument(f"{shown} is not a Python file: its name must end in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module  # dataclasses and typing look their module up by name
    try:
        spec.loader.exec_module(module)
    except TraitMissing:
        raise
    except (Exception, SystemExit) as exc:
        text = own_traceback(exc, str(path), within).replace(str(path), shown)
        raise InvalidArgument(f"{shown} cannot be imported: {one_line(exc)}\n{text}") from exc
    finally:
        del sys.modules[module_name]
    return replace(entry_of(vars(module), path, shown), folder=within)


def entry_of(namespace: Mapping[str, Any], path: Path, shown: str) -> Inferlet:
    """The ``@inferlet`` of a module that was executed from ``path``.

    Raises:
        InvalidArgument: there is none, or there are several.
    """
    found = [
        value
        for value in namespace.values()
        if isinstance(value, Inferlet) and value.source == str(path)
    ]
    if len(found) != 1:
        raise InvalidArgument(
            f"{shown} has {len(found)} @inferlet entries, exactly one is needed: decorate "
            "'async def main(api, *args)' with @inferlet()"
        )
    return found[0]
