"""``Node``: a component of a template, as its developer writes it."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal

from quire.core.errors import InvalidArgument
from quire.programs.workflow.engines.engine import Engine
from quire.programs.workflow.graphs.values import ValueType, value_type

Annotation = Literal["batchable", "splittable"]
ANNOTATIONS: tuple[str | None, ...] = (None, "batchable", "splittable")
MAX_NAME_CHARS = 256
"""The longest name of an application, a component, an input or an output: requests have them."""


class Node:
    """A component of a workflow.

    ``engine``: the name of an ``Engine``, or ``condition``. ``inputs`` and ``outputs``: types by
    name (``text``, ``texts``, ``documents``, ``vectors``, ``boolean``, ``object``, ``done``). An
    input takes the output of the same name of another component, or is an input of the query.
    ``annotation``: ``batchable``: the elements of its first list are independent; ``splittable``:
    its output can be used element by element. ``config``: what ``docs/guide/workflows.md`` lists
    for its kind. ``when``: the name of a boolean; the component runs only if it is true.

    ``a >> b`` states that ``a`` comes before ``b``, and returns ``b``.
    """

    def __init__(
        self,
        engine: str | Engine,
        inputs: Mapping[str, str],
        outputs: Mapping[str, str],
        annotation: Annotation | None = None,
        config: Mapping[str, Any] = MappingProxyType({}),
        *,
        name: str,
        when: str | None = None,
    ) -> None:
        self.name = name
        self.engine = engine.name if isinstance(engine, Engine) else engine
        if not isinstance(config, Mapping):
            raise InvalidArgument(
                f"{name}: config is {config!r:.80}: give a mapping of settings by their names",
                param=f"{name}.config",
            )
        self.annotation = annotation
        self.config: Mapping[str, Any] = MappingProxyType(dict(config))
        self.when = when
        self.inputs = _typed(f"{name}.inputs", inputs)
        self.outputs = _typed(f"{name}.outputs", outputs)
        self.before: list[Node] = []
        """The components that it comes before."""
        if annotation not in ANNOTATIONS:
            raise InvalidArgument(
                f"{name}: annotation {annotation!r}: use 'batchable', 'splittable' or none",
                param=f"{name}.annotation",
            )
        if not name.isidentifier() or len(name) > MAX_NAME_CHARS:
            raise InvalidArgument(
                f"a component is named {name!r:.80}: use letters, digits and '_', at most "
                f"{MAX_NAME_CHARS} of them",
                param="name",
            )

    def __rshift__(self, other: Node) -> Node:
        if not isinstance(other, Node):
            raise InvalidArgument(
                f"{self.name} >> {other!r}: the right side must be a Node", param=self.name
            )
        self.before.append(other)
        return other

    def __repr__(self) -> str:
        return f"<Node {self.name}>"


def _typed(where: str, given: Mapping[str, str]) -> Mapping[str, ValueType]:
    if not isinstance(given, Mapping):  # names alone, as in the paper's listing
        raise InvalidArgument(
            f"{where} is a {type(given).__name__}: write types by name, as in "
            '{"question": "text"}',
            param=where,
        )
    for name in given:
        if not name.isidentifier() or len(name) > MAX_NAME_CHARS:
            raise InvalidArgument(
                f"{where}: {name!r:.80} is no name: use letters, digits and '_', at most "
                f"{MAX_NAME_CHARS} of them",
                param=where,
            )
    return MappingProxyType(
        {name: value_type(written, f"{where}.{name}") for name, written in given.items()}
    )
