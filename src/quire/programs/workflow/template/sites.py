"""The site at which a component of a template makes its primitives."""

from __future__ import annotations

from collections.abc import Mapping

from quire.programs.workflow.components import ComponentSite, Value
from quire.programs.workflow.engines.engine import Engine
from quire.programs.workflow.template.node import Node


def site_of(
    node: Node,
    engine: Engine | None,
    config: Mapping[str, object],
    values: Mapping[str, Value],
    sizes: Mapping[str, int],
    stored: dict[str, int | None],
) -> ComponentSite:
    """Make the site of ``node``. ``config``: its configuration for the query; ``values``: what is
    made so far, by name; ``sizes`` and ``stored``: see ``ComponentSite``."""
    when = values[node.when].ref if node.when and node.when in values else None
    return ComponentSite(
        node=node.name,
        engine=None if engine is None else engine.name,
        batchable=node.annotation == "batchable",
        splittable=node.annotation == "splittable",
        config=config,
        inputs={name: values[name].seen_from(when) for name in node.inputs if name in values},
        outputs=node.outputs,
        when=when,
        measured=sizes,
        stored=stored,
        whole_calls=engine is not None and engine.endpoint is not None,
    )
