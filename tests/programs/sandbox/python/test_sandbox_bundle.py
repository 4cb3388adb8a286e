"""The component has the modules that guests use and no others: an edit of one that enters builds it
again, which takes minutes on a busy machine."""

from __future__ import annotations

import ast
from collections.abc import Container, Iterator

from quire.programs.sandbox.python.bundle import PACKAGE, component_files

USED_BY_PROGRAMS = ("quire.programs.api", "quire.programs.library", "quire.programs.sdk")
"""What a guest may import, besides what the component itself does."""


def module_name(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def imported(node: ast.AST) -> Iterator[str]:
    """The names that ``node`` imports, in functions too; not those for type checkers only."""
    match node:
        case ast.If(test=ast.Name(id="TYPE_CHECKING")):
            return
        case ast.Import():
            yield from (one.name for one in node.names)
        case ast.ImportFrom(level=0):
            yield from (f"{node.module}.{one.name}" for one in node.names)
        case _:
            for child in ast.iter_child_nodes(node):
                yield from imported(child)


def modules_in(name: str, known: Container[str]) -> Iterator[str]:
    """Those of ``known`` that the import of ``name`` executes: a module and its packages."""
    while name:
        if name in known:
            yield name
        name = name.rpartition(".")[0]


COMPONENT = {module_name(path): content for path, content in component_files().items()}
OURS = {module_name(str(path.relative_to(PACKAGE.parent))) for path in PACKAGE.rglob("*.py")}


def imports_of(name: str) -> set[str]:
    """The modules of ours that the component's module ``name`` imports."""
    found = imported(ast.parse(COMPONENT[name]))
    return {module for one in found for module in modules_in(one, OURS)}


def test_every_module_of_the_component_is_needed() -> None:
    found: set[str] = set()
    ahead = ["app", *(name for name in COMPONENT if name.startswith(USED_BY_PROGRAMS))]
    while ahead:
        if (name := ahead.pop()) not in found and name in COMPONENT:
            found.add(name)
            ahead += [*imports_of(name), *modules_in(name, OURS)]
    assert OURS & COMPONENT.keys() - found == set(), "leave them out: they are of the host"


def test_every_module_that_the_component_imports_is_in_it() -> None:
    missing = {name: imports_of(name) - COMPONENT.keys() for name in COMPONENT}
    assert {name: modules for name, modules in missing.items() if modules} == {}
