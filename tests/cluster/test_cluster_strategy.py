"""Strategies are loaded, tried and exchanged; a broken one changes nothing."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
from router_world import ADMIN_HEADERS, text_of, until, world
from stand_in_node import continuation

from quire.cluster.routing.loop_guard import LoopGuard
from quire.cluster.routing.strategy import StrategySource, load, read_source
from quire.cluster.strategies import SHIPPED
from quire.core.errors import InvalidArgument

EXAMPLES = Path(__file__).parents[2] / "examples" / "cluster"
FIRST = "async def route(request, engines):\n    return await engines[0].send(request)\n"
LAST = FIRST.replace("[0]", "[-1]")

BROKEN = {
    "def f(:": "SyntaxError",
    "x = 1": "defines no 'route'",
    "def route(request, engines): pass": "async def",
    "route = 3": "async def",
    "async def route(): pass": "TypeError",
    "async def route(request, engines): pass": "returned nothing",
    "async def route(request, engines): return 3": "returned 3",
    "async def route(request, engines): raise ValueError('why')": "ValueError: why",
    "async def route(request, engines): return await engines[1].send(request)": "IndexError",
    "import sys; sys.exit(3)": "SystemExit",
    "import no_such_module": "ModuleNotFoundError",
    "async def route(request, engines): return await engines[0].sendd(request)": (
        "'Engine' object has no attribute 'sendd'"
    ),
}


@pytest.mark.parametrize("text", BROKEN)
async def test_a_broken_strategy_is_refused_and_the_old_one_stays(text: str) -> None:
    async with world(2, StrategySource("route", FIRST)) as w:
        answer = await w.put(source=text)
        assert answer.status_code == 400
        assert BROKEN[text] in answer.json()["error"]["message"]
        assert (await w.complete()).headers["x-quire-node"] == "node-0"


async def test_a_strategy_that_never_ends_loading_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="not ready after"):
        await load(
            StrategySource("route", "import threading\nthreading.Event().wait()"), timeout_s=0.01
        )


async def test_a_strategy_is_exchanged_while_requests_run() -> None:
    waits = (
        "import asyncio\nopened = asyncio.Event()\n"
        "async def route(request, engines):\n"
        "    if request.prompt == 'wait': await opened.wait()\n"
        "    return await engines[0].send(request)\n"
    )
    async with world(2, StrategySource("route", waits)) as w:
        task = asyncio.create_task(w.complete("wait"))
        old = w.router.strategy.current
        await until(lambda: old.num_running == 1)
        assert (await w.put(source=LAST)).json()["leaving"][0]["num_running"] == 1
        assert (await w.complete()).headers["x-quire-node"] == "node-1"
        old.strategy.route.__globals__["opened"].set()  # type: ignore[attr-defined]
        assert (await task).headers["x-quire-node"] == "node-0"
        seen = (await w.http.get("/router/strategy", headers=ADMIN_HEADERS)).json()
        assert seen["source"] == LAST
        assert not seen["leaving"]


async def test_only_the_admin_key_exchanges_it() -> None:
    async with world(1) as w:
        for headers in ({}, {"authorization": "Bearer other"}):
            answer = await w.http.put(
                "/router/strategy", json={"name": "least_used"}, headers=headers
            )
            assert answer.status_code == 401
        assert (await w.put(name="least_used")).status_code == 200
    async with world(1, admin_key=None) as w:
        assert (await w.put(name="least_used")).status_code == 403
        assert (await w.http.get("/router/strategy")).json()["name"] == "data_parallel"


@pytest.mark.parametrize(
    "change",
    [
        {"name": "nothing"},
        {},
        {"name": "cache_aware", "options": {"max_extra": "many"}},
        {"name": "cache_aware", "options": {"other": 1}},
        {"name": "least_used", "options": {"any": 1}},
        {"name": "least_used", "sauce": ""},
        {"name": 3},
    ],
)
async def test_a_change_that_says_too_little_or_too_much_is_refused(change: dict[str, str]) -> None:
    async with world(1) as w:
        assert (await w.put(**change)).status_code == 400


TYPED = """
from dataclasses import dataclass, field

@dataclass
class Choose:
    ratio: float
    most: int | None = None
    names: list = field(default_factory=list)
    share: float = 0.5

    async def __call__(self, request, engines):
        return await engines[0].send(request)
"""


@pytest.mark.parametrize(
    ("options", "refusal"),
    [
        ({"ratio": 0.5, "most": 3, "names": ["a"], "share": 1}, None),
        ({"ratio": 1.5}, None),
        (
            {},
            "takes the options ratio, most=None, names=<factory>, share=0.5: missing a required "
            "argument: 'ratio'",
        ),
        ({"ratio": 0.5, "share": "all"}, "option share must be float, not 'all'"),
    ],
)
async def test_options_have_the_types_of_their_defaults(
    options: dict[str, Any], refusal: str | None
) -> None:
    source = StrategySource("Choose", TYPED, options=options)
    if refusal is None:
        assert (await load(source)).source == source
    else:
        with pytest.raises(InvalidArgument, match=refusal):
            await load(source)


async def test_a_changed_file_is_taken_over_and_a_broken_one_is_not(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(FIRST)
    async with world(2, read_source(f"{file}:route")) as w:
        running = w.router.strategy
        assert (await w.complete()).headers["x-quire-node"] == "node-0"
        file.write_text("async def route(: pass")
        await running.look()
        assert "SyntaxError" in str(running.refusal)
        assert (await w.complete()).headers["x-quire-node"] == "node-0"
        file.write_text(LAST)
        await running.look()
        assert (await w.complete()).headers["x-quire-node"] == "node-1"
        assert running.refusal is None


def test_a_source_is_a_shipped_name_or_a_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(FIRST)
    assert read_source(str(file)).name == "route"
    assert read_source(f"{file}:other").name == "other"
    assert read_source("least_used").text is None
    for wrong in ("nothing", f"{tmp_path}/none.py:route", ""):
        with pytest.raises(InvalidArgument):
            read_source(wrong)


async def test_a_strategy_that_raises_fails_its_request_alone() -> None:
    text = (
        "async def route(request, engines):\n"
        "    if request.prompt == 'raise': raise KeyError('this one')\n"
        "    if request.prompt == 'nothing': return None\n"
        "    return await engines[0].send(request)\n"
    )
    async with world(1, StrategySource("route", text)) as w:
        answers = await asyncio.gather(*(w.complete(p) for p in ("raise", "x", "nothing", "y")))
        assert [answer.status_code for answer in answers] == [500, 200, 500, 200]
        first, nothing = (answers[at].json()["error"] for at in (0, 2))
        assert first["code"] == nothing["code"] == "strategy_failed"
        assert "the text sent:route" in first["message"]
        assert "KeyError: 'this one'" in first["message"]
        assert w.router.strategy.current.num_failed == 2


async def test_answers_that_a_strategy_does_not_return_are_ended() -> None:
    text = (
        "async def route(request, engines):\n"
        "    await engines[0].send(request)\n"
        "    return await engines[1].send(request)\n"
    )
    text = text.replace("engines[1]", "engines[-1]")  # its trial offers one engine, too
    async with world(2, StrategySource("route", text)) as w:
        w.nodes[0].tokens, w.nodes[1].tokens = asyncio.Semaphore(1), asyncio.Semaphore(1)
        task = asyncio.create_task(w.complete("Once", stream=True))
        await until(lambda: w.nodes[0].peer.num_left == 1)  # while the other one goes on
        assert [node.num_outstanding for node in w.router.nodes] == [0, 1]
        for _ in range(4):
            w.nodes[1].tokens.release()
        assert text_of(await task) == continuation("Once", 4)
        assert w.router.nodes[1].num_outstanding == 0


@pytest.mark.parametrize("name", sorted(SHIPPED))
async def test_every_shipped_strategy_passes_its_trial(name: str) -> None:
    assert (await load(StrategySource(name))).label == name


@pytest.mark.parametrize(
    "name",
    [
        "long_prompts_apart.py:route",
        "prefill_where_idle.py:PrefillWhereIdle",
        "decodes_move.py:Levelled",
    ],
)
async def test_the_examples_pass_their_trial_and_answer(name: str) -> None:
    source = read_source(str(EXAMPLES / name))
    async with world(2, source) as w:
        assert text_of(await w.complete("Once")) == continuation("Once", 4)


def test_a_strategy_that_blocks_the_loop_is_named(caplog: pytest.LogCaptureFixture) -> None:
    inside, released = threading.Event(), threading.Event()
    code = compile("def route():\n    inside.set()\n    released.wait()\n", "mine.py", "exec")
    names: dict[str, object] = {"inside": inside, "released": released}
    exec(code, names)
    thread = threading.Thread(target=names["route"])  # type: ignore[arg-type]
    thread.start()
    inside.wait()
    posted: list[object] = []

    waited: list[float | None] = []

    def wait(event: threading.Event, timeout_s: float | None) -> bool:
        waited.append(timeout_s)
        return released.is_set()

    def interrupt() -> None:  # the second one reaches it
        if len(waited) > 2:
            released.set()

    guard = LoopGuard(
        post=posted.append,
        thread_id=thread.ident or 0,
        name_of=lambda file: "mine.py:route" if file == "mine.py" else None,
        max_block_s=0.5,
        interrupt=interrupt,
        wait=wait,
    )
    assert not guard.probe()
    thread.join()
    assert waited == [0.5, 1.5, 0.5, 0.5, None]
    assert guard.last_blocked == "mine.py:route"
    assert "strategy mine.py:route has blocked the router" in caplog.text


async def test_a_failure_names_the_line_of_the_strategy() -> None:
    source = """
async def route(request, engines):
    if "Hi" in request.prefix:
        return await chosen(engines).send(request)
    return await engines[0].send(request)

def chosen(engines):
    return {"a": engines[0]}["zz"]
"""
    async with world(1) as w:
        assert (await w.put(name="route", source=source)).status_code == 200
        error = (await w.complete("Hi")).json()["error"]
        assert error["message"].endswith("has failed for this request: KeyError: 'zz' (line 8)")
        source = source.replace('{"a": engines[0]}["zz"]', "int('x', base=engines)")
        assert (await w.put(name="route", source=source)).status_code == 200
        assert "(line 8)" in (await w.complete("Hi")).json()["error"]["message"]
