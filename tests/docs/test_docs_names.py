"""One name, one thing (docs/glossary.md): no two public classes of the package share a name."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "src" / "quire"

WIRE_FORMS = PACKAGE / "server" / "schemas"
"""A schema may have the name of what it is the wire form of."""

STAND_INS = PACKAGE / "programs" / "sandbox" / "python" / "guest" / "stand_ins"
"""In the sandbox they stand in for modules, and have the names of those."""

FROM_PAPERS = {
    "AttentionScores": 2,
    "Engine": 3,
    "Node": 2,
}
"""Names that are used twice on purpose. Ayo's listings say ``Engine`` and ``Node`` of a template,
Microserving's say ``Engine`` of what a router has; the reply that a program sees has the name of
the reply of control."""


def public_classes(folder: Path) -> Iterator[tuple[str, Path]]:
    for path in sorted(folder.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                yield node.name, path


def test_no_two_classes_have_one_name() -> None:
    places: dict[str, list[Path]] = defaultdict(list)
    for name, path in public_classes(PACKAGE):
        if not path.is_relative_to(WIRE_FORMS) and not path.is_relative_to(STAND_INS):
            places[name].append(path.relative_to(PACKAGE))
    shared = {name: found for name, found in places.items() if len(found) > 1}
    assert {name: len(found) for name, found in shared.items()} == FROM_PAPERS, shared


def test_no_two_schemas_have_one_name() -> None:
    places: dict[str, list[Path]] = defaultdict(list)
    for name, path in public_classes(WIRE_FORMS):
        places[name].append(path)
    assert not {name: found for name, found in places.items() if len(found) > 1}


FACES = {
    "cluster/for_strategies.py",  # what a strategy's file imports
    "core/policy.py",  # what a policy of one's own imports
    "node/edge.py",  # loaded by ``quire.node`` when a name is asked for
    "programs/sandbox/python/guest/stand_ins/msgspec/json.py",  # has the names of ``msgspec.json``
    "programs/sdk/dists.py",  # imported by programs as a module
}
"""Modules that others import names from as from a package."""


def test_only_faces_list_their_names() -> None:
    listing = {
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*.py")
        if path.name != "__init__.py" and "\n__all__" in path.read_text()
    }
    assert listing == FACES
