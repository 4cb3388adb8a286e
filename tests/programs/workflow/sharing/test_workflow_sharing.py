"""Equal pure primitives of a tenant run once, whatever query they are of."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from workflow_expansion import EachStep

from quire.core.ids import TenantId
from quire.programs.workflow import App, Engine, Graph, Node, StepLog, run_query
from quire.programs.workflow.engines.endpoint import Endpoint
from quire.programs.workflow.graphs.primitives import Op, Primitive
from quire.programs.workflow.runners.remote import RemoteRunner
from quire.programs.workflow.sharing import SharedResults, Sharing, SharingStatistics
from quire.testing import LocalNode
from quire.testing.local_node import scripted_node

A, B = TenantId("a"), TenantId("b")


class Now:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def shared(max_bytes: int = 10_000) -> tuple[SharedResults, Now]:
    now = Now()
    return SharedResults(max_bytes, 10.0, now), now


def put(results: SharedResults, tenant: TenantId, key: bytes, num_bytes: int = 100) -> None:
    assert results.begin(tenant, key) is None
    results.end(tenant, key, (key, num_bytes))
    results.check_invariants()


def value_of(results: SharedResults, tenant: TenantId, key: bytes) -> Any:
    found = results.begin(tenant, key)
    if found is None:
        results.end(tenant, key, None)
        return None
    assert not hasattr(found, "result"), "somebody computes it"
    return found.value


def test_a_result_is_of_its_tenant_for_a_time() -> None:
    results, now = shared()
    put(results, A, b"k")
    assert value_of(results, A, b"k") == b"k"
    assert value_of(results, B, b"k") is None
    now.now_s = 10.0
    assert value_of(results, A, b"k") is None
    assert results.statistics() == SharingStatistics(1, 0, 1, 0)


def test_the_tenant_that_keeps_most_gives_way() -> None:
    results, _ = shared(1500)  # a result of 100 bytes counts as 400
    put(results, B, b"mine")
    for key in (b"1", b"2"):
        put(results, A, key)
    assert value_of(results, A, b"1") == b"1"
    put(results, A, b"3")
    kept = [key for key in (b"1", b"2", b"3") if value_of(results, A, key) is not None]
    assert kept == [b"1", b"3"], "the one that was not used for longest is gone"
    assert value_of(results, B, b"mine") == b"mine"
    put(results, A, b"large", 5000)
    assert value_of(results, A, b"large") is None


def test_functions_have_numbers_of_their_own() -> None:
    results, _ = shared()

    def make() -> Callable[[], int]:
        return lambda: 1

    one, other = make(), make()
    assert results.number_of(one) == results.number_of(one) != results.number_of(other)
    number = results.number_of(make())
    assert number != results.number_of(make())
    assert results.number_of([]) is None


# -- queries ---------------------------------------------------------------------------------------


def asking(prompt: str = "Say {text}", **config: Any) -> App:
    app = App("asking", [Engine("llm")])
    node = Node("llm", {"text": "text"}, {"answer": "text"}, None, {"prompt": prompt, **config},
                name="ask")  # fmt: skip
    app.update_template([node])
    return app


class Asked:
    """A node with a scripted model."""

    def __init__(self, **options: Any) -> None:
        self.local = scripted_node(lambda prompt: f"It is {len(prompt)}.<|end|>", page_size=4)
        if options:
            now_s = self.local.harness.clock.now_s
            self.local.shared_results = SharedResults(options["num_bytes"], 3600.0, now_s)

    @property
    def num_written(self) -> int:
        """Answers that the model has written."""
        return self.local.shared_results.statistics().num_computed

    async def ask(
        self, app: App, text: str, tenant: str = "default", log: StepLog | None = None
    ) -> Any:
        async def main(api: Any) -> Any:
            return await run_query(api, app, {"text": text}, watcher=log)

        return await self.local.run(main, connect=self.local.connect("q", tenant=tenant))


class Together(StepLog):
    """The log of a query that begins its answer when ``others`` begin theirs: their graphs are made
    in threads, and may be ready at any time."""

    def __init__(self, others: asyncio.Barrier) -> None:
        super().__init__()
        self._others = others

    async def began(self, primitive: Primitive, started_s: float) -> None:
        await super().began(primitive, started_s)
        if primitive.op is Op.DECODING:
            await self._others.wait()


async def test_equal_answers_in_flight_are_written_once() -> None:
    asked = Asked()
    async with asked.local:
        together = asyncio.Barrier(4)
        logs = [Together(together) for _ in range(4)]
        found = await asyncio.gather(*(asked.ask(asking(), "a", log=log) for log in logs))
        assert asked.num_written == 1
        assert len({one["answer"] for one in found}) == 1
        steps = [step for log in logs for step in log.steps if step.primitive.op is Op.DECODING]
        how = [step.shared for step in steps]
        assert sorted(map(str, how)) == ["None", "in flight", "in flight", "in flight"]
        await asked.ask(asking(), "a")
        assert asked.num_written == 2, "nothing is kept"
        assert asked.local.shared_results.statistics() == SharingStatistics(0, 3, 2, 0)


async def test_a_kept_answer_is_of_the_same_tenant_prompt_and_settings() -> None:
    asked, log = Asked(num_bytes=10_000), StepLog()
    async with asked.local:
        first = await asked.ask(asking(), "a")
        assert await asked.ask(asking(), "a", log=log) == first
        assert [step.shared for step in log.steps] == [None, "kept"]
        assert asked.num_written == 1
        others = [
            (asking(), "b", "default"), (asking(), "a", "other"), (asking(max_tokens=9), "a", "x"),
            (asking(max_tokens=8), "a", "x"), (asking(answer_after="is"), "a", "x"),
        ]  # fmt: skip
        for number, (app, text, tenant) in enumerate(others, 2):
            await asked.ask(app, text, tenant)
            assert asked.num_written == number
        assert await asked.ask(asking("Say {text}"), "a", "default") == first
        asked.local.shared_results.check_invariants()


async def test_who_waits_asks_itself_if_the_first_one_is_cancelled() -> None:
    asked = Asked()
    async with asked.local as local:
        local.hold = True
        one = asyncio.create_task(asked.ask(asking(), "a"))
        while not local.shared_results._under_way:  # noqa: ASYNC110
            await asyncio.sleep(0)
        other = asyncio.create_task(asked.ask(asking(), "a"))
        for _ in range(50):
            await asyncio.sleep(0.001)
        (first, *_) = local.programs()
        first.cancel()
        local.hold = False
        assert (await other)["answer"].startswith("It is")
        with pytest.raises(Exception, match="cancelled"):
            await one


def working(function: Any, **config: Any) -> App:
    app = App("work", [Engine("tool", config={"functions": {"f": function}})])
    node = Node("tool", {"text": "text"}, {"answer": "text"}, None, {"function": "f", **config},
                name="work")  # fmt: skip
    app.update_template([node])
    return app


@pytest.mark.parametrize(("config", "num"), [({"pure": True}, 1), ({}, 3), ({"effects": ["x"]}, 3)])
async def test_a_tool_is_shared_only_if_it_is_declared_pure(config: Any, num: int) -> None:
    calls: list[str] = []

    def call(text: str) -> str:
        calls.append(text)
        return text.upper()

    app = working(call, **config)

    async def main(api: Any) -> Any:
        return await run_query(api, app, {"text": "a"})

    async with LocalNode(shared_results_bytes=10_000) as local:
        for _ in range(3):
            assert await local.run(main) == {"answer": "A"}
        other = working(lambda text: "another one", pure=True)

        async def again(api: Any) -> Any:
            return await run_query(api, other, {"text": "a"})

        assert await local.run(again) == {"answer": "another one"}
    assert len(calls) == num


async def test_what_json_has_not_is_not_shared() -> None:
    calls: list[str] = []

    def make(text: str) -> Any:
        calls.append(text)
        return (text,)

    app = App("app", [Engine("tool", config={"functions": {"f": make}})])
    node = Node("tool", {"text": "text"}, {"made": "object"}, None, {"function": "f", "pure": True},
                name="f")  # fmt: skip
    app.update_template([node])

    async def main(api: Any) -> Any:
        return len((await run_query(api, app, {"text": "a"}))["made"])

    async with LocalNode(shared_results_bytes=10_000) as local:
        assert [await local.run(main), await local.run(main)] == [1, 1]
    assert len(calls) == 2


@pytest.mark.parametrize(
    ("parameters", "num"),
    [({}, 1), ({"temperature": 0.7}, 2), ({"temperature": None}, 2),
     ({"temperature": 0.7, "seed": 1}, 1)],
)  # fmt: skip
async def test_a_model_elsewhere_is_shared_unless_it_draws_by_chance(
    parameters: Any, num: int
) -> None:
    requests: list[httpx.Request] = []

    def handle(request: httpx.Request) -> httpx.Response:
        requests.append(request)
        message = {"message": {"content": "Yes."}, "finish_reason": "stop"}
        return httpx.Response(200, json={"choices": [message]})

    endpoint = Endpoint("http://there/v1", "m", parameters=parameters)
    config = {"base_url": "http://there/v1", "model": "m", "parameters": parameters}
    app = App("app", [Engine("llm", config=config)])
    ask = Node("llm", {"q": "text"}, {"a": "text"}, None, {"prompt": "{q}"}, name="ask")
    app.update_template([ask])
    (primitive,) = Graph.optimize(app, {"q": "x"}).e_graph.primitives.values()

    async def main(api: Any) -> Any:
        transport = httpx.MockTransport(handle)
        runner = RemoteRunner(endpoint, transport=transport, sharing=Sharing(api))
        return (await runner.run(primitive, {"q": "x"}))["out"]

    async with LocalNode(shared_results_bytes=10_000) as local:
        assert [await local.run(main), await local.run(main)] == ["Yes.", "Yes."]
    assert len(requests) == num


async def test_the_drawing_tells_what_was_shared() -> None:
    asked = Asked(num_bytes=10_000)
    graph = Graph.optimize(asking(), {"text": "a"})
    async with asked.local as local:
        for word in ("", " (shared)"):
            log = EachStep(lambda step: None)

            async def main(api: Any, log: StepLog = log) -> Any:
                steps = StepLog()
                await graph.schedule(api, steps)
                return graph.explain(steps.steps)

            drawn = await local.run(main)
            assert ("(shared)" in drawn) == bool(word)
