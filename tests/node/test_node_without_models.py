"""A node that serves no model runs the programs that need none, and refuses others."""

from __future__ import annotations

import json

import pytest

from quire.core.config import NodeConfig
from quire.core.errors import EngineLost
from quire.core.ids import TenantId
from quire.node import Node
from quire.programs import inferlet
from quire.programs.workflow import App, Engine, workflow
from quire.programs.workflow import Node as Component

TENANT = TenantId("default")
FAR = {"base_url": "http://127.0.0.1:9/v1", "model": "far"}


def upper(text: str) -> str:
    return text.upper()


def application(*others: Engine) -> App:
    """Text in capitals; the components of ``others`` name them as their engines."""
    app = App("loud", [Engine("tool", config={"functions": {"upper": upper}}), *others])
    config = {"function": "upper"}
    loud = Component("tool", {"text": "text"}, {"loud": "text"}, config=config, name="loud")
    asked = [
        Component(one.name, {"text": "text"}, {one.name: "text"}, name=f"with_{one.name}",
                  config={"prompt": "{text}"} if one.kind == "llm" else {})
        for one in others
    ]  # fmt: skip
    app.update_template([loud, *asked])
    return app


def test_what_needs_a_model_of_the_node_is_known() -> None:
    assert not application().needs_model
    assert not application(Engine("llm", name="far", config=FAR)).needs_model
    assert application(Engine("llm", name="near")).needs_model
    called = Engine("tool", name="called", config={"program": "count"})
    assert application(called).needs_model, "a program may use any model"
    unused = App("loud", [*application().engines.values(), Engine("llm", name="near")])
    unused.update_template(application().nodes)
    assert not unused.needs_model


async def test_a_workflow_that_needs_no_model_runs_without_one() -> None:
    node = Node(NodeConfig(engines=()))
    await node.start()
    try:
        query = json.dumps({"text": "Hello"})
        handle = node.launch(workflow(application()), [query], tenant=TENANT)
        assert await handle.result() == {"loud": "HELLO"}
        with pytest.raises(EngineLost, match="no model is loaded"):
            node.launch(workflow(application(Engine("llm"))), [query], tenant=TENANT)

        @inferlet()
        async def any_program(api: object) -> None: ...

        with pytest.raises(EngineLost, match="no model is loaded"):
            node.launch(any_program, [], tenant=TENANT)
    finally:
        await node.stop()
