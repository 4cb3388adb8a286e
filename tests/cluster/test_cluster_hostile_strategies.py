"""A strategy may be any code: whatever it does, it is refused in bounded time and memory, or fails
its own request, and the router goes on."""

from __future__ import annotations

import asyncio
import gc
import linecache
import os
import subprocess
import sys
from pathlib import Path

import pytest
from router_world import ADMIN_HEADERS, until, world

from quire.cluster.requests.request import Request
from quire.cluster.routing.apart import TrialApart
from quire.cluster.routing.interrupting import Interrupter, _Interrupt
from quire.cluster.routing.running import RunningStrategy
from quire.cluster.routing.strategy import (
    MAX_SOURCE_BYTES,
    StrategySource,
    load,
    read_source,
)
from quire.cluster.routing.trial_process import Limits
from quire.core.errors import InvalidArgument

# a strategy is interrupted wherever it is: also in hypothesis' callback of the collector, where the
# exception is reported and lost; the next one is raised a moment later
pytestmark = pytest.mark.filterwarnings("ignore:Exception ignored in. <function gc_cumulative_time")

GOOD = "async def route(request, engines):\n    return await engines[0].send(request)\n"
OTHER = GOOD.replace("[0]", "[-1]")
SHOWS = "class E(BaseException):\n    def __str__(self): {}\nraise E()"
RESULT = "class R:\n    def {}: {}\nasync def route(request, engines): return R()"

HOSTILE = {
    SHOWS.format("raise ValueError('x')"): "E: (it cannot be shown) (line 3)",
    SHOWS.format("raise SystemExit(3)"): "E: (it cannot be shown)",
    SHOWS.format("return 'x' * 10**7"): "xxx...",
    SHOWS.format("return '\\ud800'"): "E: \\ud800",
    "class E(Exception): pass\nE.__name__ = 'n' * 10**6\nraise E()": "nnn...: ",
    "class E(Exception): lineno = property(lambda self: 1 / 0)\nraise E()": "E: ",
    "raise BaseExceptionGroup('all', [KeyboardInterrupt()])": "BaseExceptionGroup: all",
    RESULT.format("__repr__(self)", "raise SystemExit"): "has returned (it cannot be shown)",
    RESULT.format("__getattr__(self, name)", "raise SystemExit"): "has returned <quire_",
    RESULT.format("__repr__(self)", "return 'r' * 10**7"): "has returned rrr",
    "def __getattr__(name): raise SystemExit": "SystemExit",
    "class M(type):\n    def __call__(cls): raise SystemExit\nclass route(metaclass=M): 1": "Exit",
    "class route:\n    __signature__ = 3": "TypeError",
    "(" * 100_000: "SyntaxError",
    "x = " + "-" * 100_000 + "1": "is refused",
    "x = 1\0": "SyntaxError",
}


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
async def test_what_cannot_be_shown_is_refused_all_the_same(text: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        await load(StrategySource("route", text))
    assert HOSTILE[text] in caught.value.message
    assert len(caught.value.message) < 1000
    caught.value.message.encode()


ENDLESS = {
    "sum(range(10**18))": "has used 0.5 s of processor time",  # nothing in Python can interrupt it
    "async def route(request, engines):\n    while True: pass": "has used 0.5 s of processor time",
    "x = []\nwhile True: x.append(bytearray(1 << 28))": "MemoryError",
    "import os; os.closerange(0, 100); os.kill(os.getpid(), 9)": "exit status -9",
}


@pytest.mark.parametrize("text", ENDLESS, ids=range(len(ENDLESS)))
async def test_what_takes_time_or_memory_without_end_is_ended(text: str) -> None:
    apart = TrialApart(Limits(processor_s=0.5, memory_bytes=1 << 28), timeout_s=100)
    with pytest.raises(InvalidArgument, match="is refused") as caught:
        await apart(StrategySource("route", text))
    assert ENDLESS[text] in caught.value.message


async def test_one_that_waits_is_not_waited_for() -> None:
    apart = TrialApart(timeout_s=0.1)
    with pytest.raises(InvalidArgument, match="was not ready after"):
        await apart(StrategySource("route", "import threading\nthreading.Event().wait()"))


async def test_what_is_tried_apart_ends_with_the_trial(tmp_path: Path) -> None:
    number = tmp_path / "number"
    text = (
        "import subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-c', 'input()'], stdin=subprocess.PIPE)\n"
        f"open({str(number)!r}, 'w').write(str(child.pid))\n" + GOOD
    )
    await TrialApart()(StrategySource("route", text))
    child = Path(f"/proc/{number.read_text()}/stat")
    await until(lambda: not child.exists() or child.read_text().split()[2] == "Z")


async def test_a_good_one_passes_apart_with_its_options_and_modules(tmp_path: Path) -> None:
    (tmp_path / "beside_it.py").write_text("ENGINE = 0")
    text = (
        "import dataclasses, beside_it\n"
        "print('what it prints is no answer', flush=True)\n"
        "@dataclasses.dataclass\nclass Mine:\n    at: int = 7\n"
        "    async def __call__(self, request, engines):\n"
        "        return await engines[self.at + beside_it.ENGINE].send(request)\n"
    )
    sys.path.append(str(tmp_path))
    try:
        await TrialApart()(StrategySource("Mine", text, tmp_path / "mine.py", {"at": 0}))
    finally:
        sys.path.remove(str(tmp_path))


def test_the_process_of_a_trial_imports_no_node() -> None:
    """Without it the process starts in a quarter of the time."""
    imports = "import sys, quire.cluster.routing.trial_process"
    code = f"{imports}; sys.exit('quire.node' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


async def test_the_router_tries_what_it_is_sent_apart() -> None:
    async with world(1, try_apart=None) as w:
        answer = await w.put(source="import os\nos._exit(7)")
        assert answer.status_code == 400
        assert "exit status 7" in answer.json()["error"]["message"]
        assert (await w.complete()).headers["x-quire-node"] == "node-0"


RAISES = {
    "exit": "raise SystemExit(3)",
    "interrupt": "raise KeyboardInterrupt",
    "own": "raise E",
    "cancelled": "import asyncio; raise asyncio.CancelledError",
    "group": "raise BaseExceptionGroup('all', [SystemExit()])",
    "result": "return E()",
}


async def test_whatever_a_strategy_raises_fails_its_request_alone() -> None:
    cases = "".join(f"    if request.prompt == {name!r}: {RAISES[name]}\n" for name in RAISES)
    text = (
        "class E(BaseException):\n    def __str__(self): raise SystemExit\n    __repr__ = __str__\n"
        "async def route(request, engines):\n" + cases + "    return await engines[0].send(request)"
    )
    async with world(1, StrategySource("route", text)) as w:
        answers = {name: await w.complete(name) for name in (*RAISES, "x")}
        assert [one.status_code for one in answers.values()] == [500] * len(RAISES) + [200]
        for name in RAISES:
            assert answers[name].json()["error"]["code"] == "strategy_failed"
        assert "SystemExit: 3" in answers["exit"].json()["error"]["message"]
        assert w.router.strategy.current.num_failed == len(RAISES)


@pytest.mark.parametrize("kind", ["pipe", "device", "long", "folder", "bytes"])
def test_a_file_that_is_no_strategy_is_refused_without_being_read_whole(
    kind: str, tmp_path: Path
) -> None:
    file = tmp_path / "mine.py"
    match kind:
        case "pipe":
            os.mkfifo(file)  # opening it waits for a writer
        case "device":
            file.symlink_to("/dev/zero")
        case "long":
            file.write_bytes(b"#" * (MAX_SOURCE_BYTES + 1))
        case "folder":
            file.mkdir()
        case "bytes":
            file.write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidArgument, match="file"):
        read_source(str(file))
    file = tmp_path / "most.py"
    file.write_bytes(b"#" * MAX_SOURCE_BYTES)
    assert len(read_source(str(file)).text or "") == MAX_SOURCE_BYTES


async def test_a_strategy_that_is_sent_while_its_file_changes_stays(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(GOOD)
    tried, go_on = asyncio.Event(), asyncio.Event()

    async def slowly(source: StrategySource) -> None:
        tried.set()
        await go_on.wait()

    running = RunningStrategy(await load(read_source(str(file))), try_apart=slowly)
    sent = asyncio.create_task(running.change(StrategySource("route", OTHER)))
    await tried.wait()
    file.write_text(GOOD + "\n")
    looking = asyncio.create_task(running.look())  # while the other one is being tried
    await asyncio.sleep(0)
    go_on.set()
    await asyncio.gather(sent, looking)
    assert running.current.strategy.source.text == OTHER
    assert running.current.strategy.source.path is None


async def test_a_file_that_cannot_be_tried_now_is_tried_again(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(GOOD)
    num_tried = 0

    async def tried(source: StrategySource) -> None:
        nonlocal num_tried
        num_tried += 1
        if num_tried == 1:
            raise OSError("no process can be started")

    running = RunningStrategy(await load(read_source(str(file))), try_apart=tried)
    file.write_text(OTHER)
    await running.look()
    assert running.current.strategy.source.text == GOOD
    await running.look()
    assert running.current.strategy.source.text == OTHER


async def test_a_file_that_changes_while_it_is_tried_is_looked_at_again(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(GOOD)

    async def changing(source: StrategySource) -> None:
        file.write_text(OTHER)

    running = RunningStrategy(await load(read_source(str(file))), try_apart=changing)
    file.write_text(GOOD + "# begun\n")
    await running.look()
    assert running.current.strategy.source.text == GOOD + "# begun\n", "what was tried"
    await running.look()
    assert running.current.strategy.source.text == OTHER


async def test_strategies_that_are_over_leave_nothing_behind(tmp_path: Path) -> None:
    async def passed(source: StrategySource) -> None: ...

    def num_kept() -> int:
        gc.collect()
        # copied first: a thread of another test may import something meanwhile
        modules = [name for name in list(sys.modules) if name.startswith("quire_strategy_")]
        lines = [name for name in list(linecache.cache) if name.startswith("<strategy ")]
        return len(modules) + len(lines)

    before = num_kept()
    running = RunningStrategy(await load(StrategySource("data_parallel")), try_apart=passed)
    for number in range(4):
        await running.change(StrategySource("route", f"{GOOD}# {number}\n"))
        with pytest.raises(InvalidArgument):
            await running.change(StrategySource("route", f"raise ValueError({number})"))
    assert num_kept() == before + 4, "the module and lines of the one in force and that before"
    for _ in range(2):
        await running.change(StrategySource("data_parallel"))
    assert num_kept() == before
    file = tmp_path / "mine.py"
    for text in (GOOD, OTHER):
        file.write_text(text)
        await running.change(read_source(str(file)))
    gc.collect()
    assert linecache.getline(str(file), 2).strip().endswith("engines[-1].send(request)")


BLOCKS = {
    "computes": "        while True: pass\n",
    "waits": "        time.sleep(3600)\n",
    "catches": """        while True:
            try:
                while True: pass
            except Exception: pass
""",
    "elsewhere": "        json.dumps([json.loads('[1]') for _ in iter(int, 1)])\n",
}
NUM_CALLS = 10


def blocking(how: str) -> StrategySource:
    """Answers ten requests, and blocks with the next."""
    text = (
        "import itertools, json, time\n"
        "numbers = itertools.count()\n"
        "async def route(request, engines):\n"
        f"    if request.request_id != 'trial' and next(numbers) >= {NUM_CALLS}:\n"
        f"{BLOCKS[how]}"
        "    return await engines[0].send(request)\n"
    )
    return StrategySource("route", text)


@pytest.mark.parametrize("how", BLOCKS)
async def test_one_that_blocks_later_gives_way_to_the_one_before(how: str) -> None:
    async with world(2, "least_used", max_block_s=0.25) as w:
        await w.router.strategy.change(blocking(how))
        answers = [await w.complete() for _ in range(NUM_CALLS)]
        assert {one.headers["x-quire-node"] for one in answers} == {"node-0"}
        others = await asyncio.gather(*(w.complete() for _ in range(3)))
        assert [one.status_code for one in others] == [200] * 3
        shown = (await w.http.get("/router/strategy", headers=ADMIN_HEADERS)).json()
        assert shown["name"] == "least_used"
        assert "kept all requests waiting" in shown["withdrawn"]
        assert "the text sent:route" in shown["withdrawn"]
        assert shown["leaving"] == []
        assert (await w.put(name="data_parallel")).json()["withdrawn"] is None


async def test_the_first_one_that_blocks_fails_its_request_alone() -> None:
    async with world(1, blocking("computes"), max_block_s=0.25) as w:
        answers = [await w.complete() for _ in range(NUM_CALLS + 2)]
        assert [one.status_code for one in answers] == [200] * NUM_CALLS + [503] * 2
        assert answers[-1].json()["error"]["code"] == "strategy_interrupted"
        assert "the text sent:route" in answers[-1].json()["error"]["message"]


async def test_one_whose_idle_blocks_gives_way_too() -> None:
    text = (
        "class Mine:\n"
        "    async def __call__(self, request, engines):\n"
        "        return await engines[0].send(request)\n"
        "    async def idle(self, request, engines):\n"
        "        while True: pass\n"
    )
    async with world(1, "least_used", max_block_s=0.25) as w:
        await w.router.strategy.change(StrategySource("Mine", text))
        shift = w.router.strategy.current
        assert shift.strategy.idle is not None
        with pytest.raises(_Interrupt):
            await w.router.dispatcher._by_strategy._idle(
                shift, shift.strategy.idle, Request("GET", "/", [], b"", ""), []
            )
        assert w.router.strategy.current.strategy.label == "least_used"


async def test_the_routers_own_code_is_not_interrupted() -> None:
    async with world(1) as w:
        interrupter = Interrupter(lambda file: "any")
        interrupter.start()
        try:
            for _ in range(50):
                interrupter()
                assert (await w.complete()).status_code == 200
        finally:
            interrupter.stop()
