"""The shipped applications by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from difflib import get_close_matches
from types import MappingProxyType

from quire.core.errors import InvalidArgument
from quire.programs.inferlet import Inferlet
from quire.programs.workflow.applications.advanced_rag import advanced_rag
from quire.programs.workflow.applications.naive_rag import naive_rag
from quire.programs.workflow.running import workflow
from quire.programs.workflow.template import App

APPLICATIONS: Mapping[str, Callable[[], App]] = MappingProxyType(
    {"naive-rag": naive_rag, "advanced-rag": advanced_rag}
)
"""What makes each application; an application is made for each node that serves it."""


class Workflows(Mapping[str, Inferlet]):
    """The program of each shipped application, made when it is first asked for: with it live the
    graphs that were built before. Belongs to one thread."""

    def __init__(self) -> None:
        self._made: dict[str, Inferlet] = {}

    def __getitem__(self, name: str) -> Inferlet:
        if name not in self._made:
            self._made[name] = workflow(APPLICATIONS[name]())
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(APPLICATIONS)

    def __len__(self) -> int:
        return len(APPLICATIONS)


def find_application(name: str) -> App:
    """The shipped application ``name``.

    Raises:
        InvalidArgument: there is none.
    """
    if name in APPLICATIONS:
        return APPLICATIONS[name]()
    near = get_close_matches(name, APPLICATIONS, n=1)
    asked = f" (did you mean {near[0]}?)" if near else ""
    raise InvalidArgument(
        f"no workflow {name!r}{asked}: name one that 'quire workflow list' shows: "
        f"{', '.join(APPLICATIONS)}"
    )


__all__ = ["APPLICATIONS", "Workflows", "advanced_rag", "find_application", "naive_rag"]
