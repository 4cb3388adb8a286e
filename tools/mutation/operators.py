"""Finds the mutants of a module: one fault each, of a kind that a review may miss.

Owns the choice of faults: mutmut's operators, and deleted statements. Reads source and writes none.
Parts that no test should check are left alone: texts of errors and logs, annotations, assertions,
and code for type checkers.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import libcst as cst
import libcst.matchers as m
from libcst.metadata import MetadataWrapper, PositionProvider
from mutmut.mutation import mutators

LEFT_OUT = {"operator_string", "operator_dict_arguments"}
"""Most strings are texts for people; faults in the others are found at once."""
OPERATORS = [entry for entry in mutators.mutation_operators if entry[1].__name__ not in LEFT_OUT]

FOR_CHECKERS_AND_PEOPLE = m.Call(
    func=m.OneOf(
        m.Name("cast"),
        m.Name("NewType"),
        m.Name("TypeVar"),
        m.Attribute(value=m.Name("logger")),
        m.Attribute(value=m.Name("logging")),
    )
)
FORGETTABLE = m.OneOf(
    m.SimpleStatementLine(body=[m.Expr(value=m.OneOf(m.Call(), m.Await()))]),
    m.SimpleStatementLine(body=[m.AugAssign()]),
    m.SimpleStatementLine(
        body=[m.Assign(targets=[m.AssignTarget(m.OneOf(m.Attribute(), m.Subscript()))])]
    ),
    m.SimpleStatementLine(body=[m.Return(value=None)]),
    m.SimpleStatementLine(body=[m.Del()]),
)
"""Statements whose deletion leaves the module working at first sight."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """``start`` and ``end`` are lines, counted from 1; ``before`` and ``after`` are code.

    ``path`` is below ``src``; ``number`` tells equal mutants of one function apart.
    """

    path: str
    function: str
    operator: str
    before: str
    after: str
    number: int
    start: int
    end: int

    def identity(self) -> str:
        """Does not change while the code fragment stays the same, wherever it moves in the
        module."""
        parts = (self.path, self.function, self.operator, self.before, self.after, str(self.number))
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def mutants_of(file: Path, root: Path) -> list[Mutant]:
    """Return all mutants of ``file``; paths are relative to ``root``."""
    module = cst.parse_module(file.read_text(encoding="utf-8"))
    wrapper = MetadataWrapper(
        module,
        unsafe_skip_copy=True,
        # a new tree, because no node may occur twice
    )
    lines = wrapper.resolve(PositionProvider)
    path = str(file.relative_to(root))
    return [
        Mutant(path, *key, number, lines[site.node].start.line, lines[site.node].end.line)
        for key, number, site in _numbered(module)
    ]


def source_with(mutant: Mutant, root: Path) -> str:
    """Return the mutant's module with its fault."""
    module = cst.parse_module((root / mutant.path).read_text(encoding="utf-8"))
    wanted = (mutant.function, mutant.operator, mutant.before, mutant.after)
    for key, number, site in _numbered(module, mutant.function):
        if (key, number) == (wanted, mutant.number):
            return cast(cst.Module, module.deep_replace(site.node, site.mutated)).code
    raise LookupError(f"{mutant.path} has no {mutant}: the file has changed; run again")


Key = tuple[str, str, str, str]
"""Function, operator, code before and after."""


def _numbered(module: cst.Module, function: str | None = None) -> Iterator[tuple[Key, int, _Site]]:
    """All sites, or those of one function; the number distinguishes sites with the same key."""
    finder = _Finder()
    module.visit(finder)
    seen: Counter[Key] = Counter()
    for site in finder.sites:
        if function not in (None, site.function):
            continue
        key = (site.function, site.operator, _code(site.node), _code(site.mutated))
        if key[2] != key[3]:
            yield key, seen[key], site
            seen[key] += 1


@dataclass(frozen=True, slots=True)
class _Site:
    node: cst.CSTNode
    mutated: cst.CSTNode
    operator: str
    function: str


def _code(node: cst.CSTNode) -> str:
    return cst.Module([]).code_for_node(node).strip()


class _Finder(cst.CSTVisitor):
    """Traverses a module once and records every place where an operator changes something."""

    def __init__(self) -> None:
        super().__init__()
        self._scopes: list[str] = []
        self.sites: list[_Site] = []

    def on_visit(self, node: cst.CSTNode) -> bool:
        if _is_left_alone(node):
            return False
        if isinstance(node, cst.FunctionDef | cst.ClassDef):
            self._scopes.append(node.name.value)
        statement = isinstance(node, cst.SimpleStatementLine)
        if statement and self._scopes and m.matches(node, FORGETTABLE):
            self._add(node, cst.SimpleStatementLine([cst.Pass()]), "forgotten_statement")
        if isinstance(node, cst.If | cst.While):
            negated = cst.UnaryOperation(cst.Not(), _parenthesized(node.test))
            self._add(node.test, negated, "negated_condition")
        for kind, operator in OPERATORS:
            if isinstance(node, kind):
                for mutated in operator(node):
                    self._add(node, mutated, operator.__name__)
        return True

    def on_leave(self, original_node: cst.CSTNode) -> None:
        if isinstance(original_node, cst.FunctionDef | cst.ClassDef):
            self._scopes.pop()

    def _add(self, node: cst.CSTNode, mutated: cst.CSTNode, operator: str) -> None:
        self.sites.append(_Site(node, mutated, operator, ".".join(self._scopes)))


def _parenthesized(test: cst.BaseExpression) -> cst.BaseExpression:
    return test.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])


def _is_left_alone(node: cst.CSTNode) -> bool:
    if isinstance(node, cst.Annotation | cst.Raise | cst.Assert | cst.Decorator | cst.ImportFrom):
        return True
    if isinstance(node, cst.If):
        return m.matches(node.test, m.Name("TYPE_CHECKING"))
    if isinstance(node, cst.SimpleStatementLine):
        return any(_is_for_checkers(statement) for statement in node.body)
    return isinstance(node, cst.Call) and m.matches(node, FOR_CHECKERS_AND_PEOPLE)


def _is_for_checkers(statement: cst.BaseSmallStatement) -> bool:
    """``__all__``, and names of types: ``Pair = tuple[int, int]``."""
    if isinstance(statement, cst.Expr):
        return m.matches(statement.value, FOR_CHECKERS_AND_PEOPLE | m.SimpleString())
    if not isinstance(statement, cst.Assign):
        return False
    target = statement.targets[0].target
    if not isinstance(target, cst.Name):
        return False
    return target.value == "__all__" or target.value == "logger" or target.value.istitle()
