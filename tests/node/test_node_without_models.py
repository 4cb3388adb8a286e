"""A node that serves no model runs the programs that need none, and refuses others."""

from __future__ import annotations

import json

import pytest
from fake_node import fake_config, fake_model_files

from quire.core.config import NodeConfig
from quire.core.errors import EngineLost, ModelFormatError, ModelNotFound
from quire.core.ids import EngineId, TenantId
from quire.node import EngineReadiness, Node
from quire.node.transports import InProcessTransport
from quire.programs import inferlet
from quire.programs.sandbox.messages import Manifest
from quire.programs.sandbox.program import WASM_MAGIC, GuestProgram, code_digest
from quire.programs.workflow import App, Engine, workflow
from quire.programs.workflow import Node as Component
from quire.testing import FakeEngine

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
        nothing = "this node serves no model, and none will be loaded: start it with one"
        with pytest.raises(ModelNotFound, match=nothing):
            node.launch(workflow(application(Engine("llm"))), [query], tenant=TENANT)

        @inferlet()
        async def any_program(api: object) -> None: ...

        guest = GuestProgram(b"", code_digest(b""), Manifest("any_program"))
        for program in (any_program, guest):
            with pytest.raises(ModelNotFound, match=nothing):
                node.launch(program, [], tenant=TENANT)
    finally:
        await node.stop()


def test_a_module_may_use_no_model() -> None:
    module = WASM_MAGIC + b"\x01\0\0\0"
    assert not GuestProgram(module, code_digest(module), Manifest("module")).needs_model


async def test_a_model_that_was_given_up_is_not_waited_for() -> None:
    def broken() -> FakeEngine:
        raise ModelFormatError("its weights are cut off")

    node = Node(
        fake_config(),
        transport_factory=lambda config: InProcessTransport("fake", broken),
        model_files=fake_model_files,
    )
    await node.start(wait_ready=False)
    await node.wait_health(
        lambda health: health.engines[EngineId("fake#0")].state is EngineReadiness.FAILED
    )

    @inferlet()
    async def any_program(api: object) -> None: ...

    try:
        with pytest.raises(EngineLost, match="cannot be served: its weights are cut off"):
            node.launch(any_program, [], tenant=TENANT)
    finally:
        await node.stop()
