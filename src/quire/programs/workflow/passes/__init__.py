"""The passes of the optimiser, one module each, and the registry that users add theirs to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from inspect import iscoroutinefunction

from quire.core.errors import InvalidArgument
from quire.programs.workflow.passes import pipeline as _pipeline
from quire.programs.workflow.passes import prefill as _prefill
from quire.programs.workflow.passes import prune as _prune
from quire.programs.workflow.passes import speculate as _speculate
from quire.programs.workflow.passes import stages as _stages
from quire.programs.workflow.passes.note import Note, Pass, Profiles, Rewritten

STANDARD: tuple[tuple[str, Pass], ...] = (
    (_prune.NAME, _prune.prune),
    (_stages.NAME, _stages.stages),
    (_prefill.NAME, _prefill.prefill),
    (_pipeline.NAME, _pipeline.pipeline),
)
"""Ayo's passes 1 to 4."""
SPECULATE: tuple[str, Pass] = (_speculate.NAME, _speculate.speculate)
KNOWN: tuple[tuple[str, Pass], ...] = (*STANDARD, SPECULATE)


class OptPass:
    """The passes that an optimisation applies, in this order, until none finds anything.

    ::

        passes = OptPass()                      # the four standard ones
        passes.register("mine", my_pass)        # def my_pass(graph, profiles) -> Rewritten
    """

    def __init__(self, names: Iterable[str] | None = None) -> None:
        """``names``: the built-in passes to begin with (default: the standard four)."""
        wanted = dict(STANDARD) if names is None else names
        self._passes = _chosen(dict(KNOWN), wanted)

    def only(self, names: Iterable[str]) -> OptPass:
        """Return the passes of these names, of the built-in ones and of those registered here.

        Raises:
            InvalidArgument: there is no such pass.
        """
        made = OptPass([])
        made._passes = _chosen({**dict(KNOWN), **self._passes}, names)
        return made

    def register(self, name: str, rule: Pass) -> None:
        """Append a pass of your own.

        Raises:
            InvalidArgument: there is a pass of that name, or ``rule`` is no function.
        """
        if not (isinstance(name, str) and name) or not callable(rule) or iscoroutinefunction(rule):
            raise InvalidArgument(
                f"register({name!r:.60}, {rule!r:.60}): give a name and a function that takes a "
                "graph and profiles and returns a Rewritten",
                param="passes",
            )
        if name in self._passes:
            raise InvalidArgument(f"a pass {name!r} is registered already: choose another name")
        self._passes[name] = rule

    def speculating(self) -> OptPass:
        """Return the same passes, followed by the one that lets primitives run ahead."""
        made = OptPass([])
        made._passes = {**self._passes, SPECULATE[0]: SPECULATE[1]}
        return made

    @property
    def own(self) -> tuple[str, ...]:
        """The names of those that are not built in."""
        return tuple(name for name, rule in self._passes.items() if (name, rule) not in KNOWN)

    @property
    def speculates(self) -> bool:
        """Whether primitives run ahead."""
        return SPECULATE[0] in self._passes

    @property
    def passes(self) -> tuple[tuple[str, Pass], ...]:
        return tuple(self._passes.items())


def read_passes(given: object) -> OptPass | None:
    """Return ``given``, None for the passes of the application.

    Raises:
        InvalidArgument: it is no ``OptPass``.
    """
    if given is None or isinstance(given, OptPass):
        return given
    raise InvalidArgument(
        f'passes is {given!r:.80}: give an OptPass, for example OptPass(["prune"])', param="passes"
    )


def _chosen(known: Mapping[str, Pass], names: Iterable[str]) -> dict[str, Pass]:
    """Return the passes of ``known`` that are named, in the order of ``known``."""
    wanted = list(names)
    for name in wanted:
        if name not in known:
            raise InvalidArgument(
                f"no pass {name!r}; the passes are {', '.join(known)}", param="passes"
            )
    return {name: one for name, one in known.items() if name in wanted}


__all__ = [
    "KNOWN",
    "SPECULATE",
    "STANDARD",
    "Note",
    "OptPass",
    "Pass",
    "Profiles",
    "Rewritten",
    "read_passes",
]
