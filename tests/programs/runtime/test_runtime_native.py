"""The native runtime: results, failures, cancellation in every state, child tasks, the watchdog."""

from __future__ import annotations

import asyncio
import functools
import gc
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from programs_port import Ports, ScriptedPort

from quire.core.errors import (
    Draining,
    ErrorRecord,
    InvalidArgument,
    MailboxClosed,
    ProgramCancelled,
    ProgramFailed,
    ProgramTerminated,
    QuotaExceeded,
    TraitMissing,
)
from quire.core.traits import Trait
from quire.programs.api import Api
from quire.programs.inferlet import Inferlet, inferlet, load_inferlet
from quire.programs.runtime import (
    BlockedLoop,
    NativeConfig,
    NativeRuntime,
    ProgramHost,
    ProgramState,
)


@pytest.fixture
async def host() -> AsyncIterator[ProgramHost]:
    host = ProgramHost(asyncio.get_running_loop(), grace_s=0.0)
    yield host
    await host.shutdown()
    assert host.programs() == []


def program(main: Any, **kwargs: Any) -> Inferlet:
    return inferlet("test", **kwargs)(main)


async def test_a_result_and_arguments(host: ProgramHost, ports: Ports) -> None:
    async def main(api: Api, *args: str) -> Any:
        return {"args": list(args), "same": api.get_arg() == list(args)}

    running = host.launch(program(main), ["a", "b"], ports.connect)
    assert running.state is ProgramState.STARTING
    assert await running.result() == {"args": ["a", "b"], "same": True}
    assert await running.result() == {"args": ["a", "b"], "same": True}
    assert (running.state, running.error) == (ProgramState.FINISHED, None)
    running.cancel()


async def test_a_failure_shows_the_program_its_own_frames(host: ProgramHost, ports: Ports) -> None:
    def inner() -> None:
        raise ValueError("no number")

    async def main(api: Api) -> None:
        try:
            inner()
        except ValueError as exc:
            async with asyncio.TaskGroup():
                raise KeyError("lost") from exc

    running = host.launch(program(main), [], ports.connect)
    with pytest.raises(ProgramFailed) as caught:
        await running.result()
    text = caught.value.details["traceback"]
    assert "ValueError: no number" in text
    assert "KeyError: 'lost'" in text
    assert "in inner" in text
    assert "taskgroups.py" not in text
    assert "execution.py" not in text
    assert running.state is ProgramState.FAILED


async def test_an_error_of_quire_keeps_its_code(host: ProgramHost, ports: Ports) -> None:
    async def main(api: Api) -> None:
        api.tokenize("\ud800")

    with pytest.raises(ProgramFailed) as caught:
        await host.launch(program(main), [], ports.connect).result()
    assert caught.value.details["code"] == "invalid_argument"


@pytest.mark.parametrize("args", [(), ("a", "b", "c", "d")])
async def test_arguments_that_do_not_fit_show_those_that_do(
    host: ProgramHost, ports: Ports, args: tuple[str, ...]
) -> None:
    async def main(api: Api, text: str, count: str, seed: str = "1") -> None:
        raise AssertionError

    with pytest.raises(InvalidArgument, match=r"given .*: it takes TEXT COUNT \[SEED\]$"):
        host.launch(program(main), args, ports.connect)


async def test_a_type_error_of_its_own_is_the_programs(host: ProgramHost, ports: Ports) -> None:
    async def main(api: Api, *rest: str) -> None:
        len(5)  # type: ignore[arg-type]

    with pytest.raises(ProgramFailed, match="object of type 'int' has no len"):
        await host.launch(program(main), ["a"], ports.connect).result()


async def test_what_is_not_json_is_no_result(host: ProgramHost, ports: Ports) -> None:
    async def main(api: Api) -> Any:
        return object()

    with pytest.raises(
        ProgramFailed, match=r"a value of type .*return a string or another JSON value"
    ):
        await host.launch(program(main), [], ports.connect).result()


@pytest.mark.parametrize(
    ("result", "told"),
    [
        (float("nan"), "it is NaN, which JSON does not have"),
        ({"scores": [0.5, float("-inf")]}, "it contains -Infinity, which JSON does not have"),
        ([{"at": (1.0, float("inf"))}], "it contains Infinity, which JSON does not have"),
    ],
)
async def test_a_number_that_json_does_not_have_is_no_result(
    host: ProgramHost, ports: Ports, result: Any, told: str
) -> None:
    """Python writes it, other readers refuse it, and over HTTP it was null."""

    async def main(api: Api) -> Any:
        return result

    with pytest.raises(ProgramFailed, match=f"returned a value that cannot be shown: {told}"):
        await host.launch(program(main), [], ports.connect).result()


async def test_what_was_not_awaited_is_named(host: ProgramHost, ports: Ports) -> None:
    async def answer() -> str:
        return "42"

    async def main(api: Api) -> Any:
        return answer()

    with pytest.raises(ProgramFailed, match=r"returned the coroutine .*'return await answer\("):
        await host.launch(program(main), [], ports.connect).result()


@pytest.mark.parametrize(
    ("result", "shown"),
    [
        (functools.reduce(lambda inner, _: [inner], range(250), 1), "deeper than 64"),
        (functools.reduce(lambda inner, _: {"a": (inner,)}, range(40), 1), "deeper than 64"),
        ([{"\ud800": 1}], "surrogate"),
        (functools.reduce(lambda inner, _: [inner], range(200_000), 1), "JSON value"),
    ],
    ids=["lists", "objects", "name", "endless"],
)
async def test_a_result_that_nobody_could_read_is_none(
    host: ProgramHost, ports: Ports, result: Any, shown: str
) -> None:
    async def main(api: Api) -> Any:
        return result

    with pytest.raises(ProgramFailed, match=shown):
        await host.launch(program(main), [], ports.connect).result()


async def test_sys_exit_ends_the_program_and_not_the_loop(host: ProgramHost, ports: Ports) -> None:
    async def leave(api: Api) -> None:
        sys.exit(3)

    async def child(api: Api) -> None:
        await asyncio.create_task(leave(api))

    for main in (leave, child):
        with pytest.raises(ProgramFailed, match=r"SystemExit"):
            await host.launch(program(main), [], ports.connect).result()


async def test_commands_nobody_awaited_are_done_before_the_end(
    host: ProgramHost, ports: Ports
) -> None:
    async def main(api: Api) -> str:
        api.alloc_kvpage(1)
        return "done"

    assert await host.launch(program(main), [], ports.connect).result() == "done"
    ports.answer = lambda c: InvalidArgument("refused").record()
    with pytest.raises(ProgramFailed, match="InvalidArgument: refused"):
        await host.launch(program(main), [], ports.connect).result()


# -- cancellation ----------------------------------------------------------------------------------


async def test_cancelled_before_its_first_step(host: ProgramHost, ports: Ports) -> None:
    steps: list[str] = []

    async def main(api: Api) -> None:
        steps.append("ran")

    running = host.launch(program(main), [], ports.connect)
    running.cancel("changed my mind")
    with pytest.raises(ProgramCancelled, match="changed my mind"):
        await running.result()
    assert (steps, running.state) == ([], ProgramState.CANCELLED)


async def awaiting_a_reply(api: Api) -> None:
    await api.synchronize()


async def awaiting_a_decode(api: Api) -> None:
    from quire.core.decoding import StopSpec

    async for _ in api.decode([], [1], [], stop=StopSpec(4)):
        pass


async def in_back_pressure(api: Api) -> None:
    for number in range(100):
        await api.send(str(number))


async def awaiting_a_message(api: Api) -> None:
    await api.receive()


async def with_child_tasks(api: Api) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(awaiting_a_message(api))
        group.create_task(awaiting_a_reply(api))


async def in_gather(api: Api) -> None:
    await asyncio.gather(awaiting_a_message(api), awaiting_a_reply(api), api.synchronize().ended())


async def cleaning_up(api: Api) -> None:
    try:
        await api.receive()
    finally:
        await asyncio.sleep(0)


async def ignoring_the_first_cancel(api: Api) -> None:
    try:
        await api.receive()
    except asyncio.CancelledError:
        await asyncio.sleep(0)


@pytest.mark.parametrize(
    "main",
    [
        awaiting_a_reply,
        awaiting_a_decode,
        in_back_pressure,
        awaiting_a_message,
        with_child_tasks,
        in_gather,
        cleaning_up,
        ignoring_the_first_cancel,
    ],
)
async def test_cancellation_in_every_state(host: ProgramHost, ports: Ports, main: Any) -> None:
    ports.answer = lambda c: ScriptedPort.HOLD
    running = host.launch(program(main), [], ports.connect)
    for _ in range(5):
        await asyncio.sleep(0)
    assert running.state is ProgramState.RUNNING
    running.cancel()
    running.cancel()
    with pytest.raises(ProgramCancelled, match="cancelled by its owner"):
        await running.result()
    assert running.state is ProgramState.CANCELLED
    assert ports.port.closed == "cancelled"
    assert host.programs() == []
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_program_that_will_not_end_loses_its_commands(
    host: ProgramHost, ports: Ports
) -> None:
    release = asyncio.Event()

    async def main(api: Api) -> None:
        while True:
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue
            api.alloc_kvpage(1)

    running = host.launch(program(main), [], ports.connect)
    await asyncio.sleep(0)
    running.cancel()
    await ports.port.was_closed.wait()
    release.set()
    with pytest.raises(ProgramCancelled):
        await running.result()


async def test_termination_by_the_node(host: ProgramHost, ports: Ports) -> None:
    running = host.launch(program(awaiting_a_message), [], ports.connect)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    ports.port.sink.on_terminated(QuotaExceeded("64 pages, at most 32").record())
    with pytest.raises(QuotaExceeded, match="64 pages"):
        await running.result()
    assert running.state is ProgramState.TERMINATED


async def test_waiting_for_a_result_can_be_given_up(host: ProgramHost, ports: Ports) -> None:
    running = host.launch(program(awaiting_a_message), [], ports.connect)
    waits = [asyncio.ensure_future(running.result()) for _ in range(2)]
    await asyncio.sleep(0)
    waits[0].cancel()
    await asyncio.sleep(0)
    assert not waits[1].done()
    running.cancel()
    with pytest.raises(ProgramCancelled):
        await waits[1]


# -- child tasks -----------------------------------------------------------------------------------


async def test_leaked_tasks_are_cancelled_and_reported(
    host: ProgramHost, ports: Ports, caplog: pytest.LogCaptureFixture
) -> None:
    ends: list[str] = []

    async def child(api: Api) -> None:
        try:
            await api.receive()
        finally:
            ends.append("cancelled")

    async def main(api: Api) -> str:
        task = asyncio.create_task(child(api), name="forgotten")
        await asyncio.sleep(0)
        assert not task.done()
        return "done"

    running = host.launch(program(main), [], ports.connect)
    assert await running.result() == "done"
    assert running.leaked_tasks == ("forgotten",)
    assert ends == ["cancelled"]
    assert "forgotten" in caplog.text


async def test_a_task_cancelled_before_it_starts_leaves_no_warning(
    host: ProgramHost, ports: Ports
) -> None:
    children: list[asyncio.Task[None]] = []

    async def child() -> None:
        raise AssertionError("must not run")

    async def main(api: Api) -> str:
        children.append(asyncio.create_task(child()))
        return "done"

    assert await host.launch(program(main), [], ports.connect).result() == "done"


async def test_what_a_task_raised_and_nobody_awaited_stands_in_the_programs_log(
    runtime: NativeRuntime, ports: Ports
) -> None:
    async def lose() -> None:
        raise ValueError("lost")

    async def main(api: Api) -> None:
        await asyncio.wait([asyncio.create_task(lose(), name="background work")])
        gc.collect()
        await asyncio.sleep(0)

    running = runtime.launch(program(main), [], ports.connect)
    lines: list[tuple[str, str]] = []
    running.listen_log(lambda level, text, fields: lines.append((level, text)))
    await running.result()
    ((level, text),) = lines
    assert level == "error"
    assert text.startswith("background work failed and was not awaited\n")
    assert text.endswith("ValueError: lost\n")
    assert "contained" not in text, "lines of the node's code are left out"


# -- messages --------------------------------------------------------------------------------------


async def test_messages_both_ways_and_the_end_of_them(host: ProgramHost, ports: Ports) -> None:
    async def main(api: Api) -> str:
        heard = []
        while True:
            try:
                heard.append(await api.receive())
            except MailboxClosed:
                return " ".join(heard)
            await api.send(heard[-1].upper())

    running = host.launch(program(main), [], ports.connect)
    await running.send("one")
    assert await running.receive() == "ONE"
    await running.send("two")
    running.close_input()
    assert await running.result() == "one two"
    assert [message async for message in running.messages()] == ["TWO"]
    with pytest.raises(MailboxClosed, match="closed its side"):
        running.send("three")


# -- the manifest ----------------------------------------------------------------------------------


async def test_a_program_is_refused_when_a_trait_is_missing(
    host: ProgramHost, ports: Ports
) -> None:
    def configure(port: ScriptedPort) -> None:
        port.model.info.traits.remove("Decode")

    ports.configure = configure
    needs = program(awaiting_a_reply, traits={Trait.DECODE: 1})
    with pytest.raises(TraitMissing, match="Decode"):
        host.launch(needs, [], ports.connect)
    with pytest.raises(TraitMissing, match="version 9"):
        program(awaiting_a_reply, traits={"Decode": 9})
    with pytest.raises(TraitMissing, match="'Teleport', which this release does not have"):
        program(awaiting_a_reply, traits={"Teleport": 1})
    with pytest.raises(InvalidArgument, match="async def main"):
        inferlet()(lambda api: None)  # type: ignore[arg-type, return-value]


def test_the_decorator_without_its_parentheses_says_so(tmp_path: Path) -> None:
    bare = tmp_path / "bare.py"
    bare.write_text("from quire.programs.sdk import inferlet\n@inferlet\nasync def it(api): pass\n")
    with pytest.raises(InvalidArgument, match=r"'it' has no parentheses: write @inferlet\(\)"):
        load_inferlet(bare)


async def test_programs_from_files(host: ProgramHost, ports: Ports, tmp_path: Path) -> None:
    good, bad, empty = tmp_path / "good.py", tmp_path / "bad.py", tmp_path / "empty.py"
    good.write_text(
        "from quire.programs import inferlet\n"
        "@inferlet(description='says it')\n"
        "async def main(api, *args):\n    return args[0] if args else 1 / 0\n"
    )
    bad.write_text("import nothing_of_this_name\n")
    empty.write_text("x = 1\n")
    loaded = load_inferlet(good)
    assert (loaded.name, loaded.description) == ("main", "says it")
    assert await host.launch(loaded, ["hi"], ports.connect).result() == "hi"
    with pytest.raises(ProgramFailed, match="1 / 0"):
        await host.launch(loaded, [], ports.connect).result()
    with pytest.raises(InvalidArgument, match="ModuleNotFoundError"):
        load_inferlet(bad)
    with pytest.raises(InvalidArgument, match="0 @inferlet entries"):
        load_inferlet(empty)
    for broken in (bad, empty):
        with pytest.raises(InvalidArgument, match=r"^your file (cannot|has 0)") as raised:
            load_inferlet(broken, shown_as="your file")
        assert str(tmp_path) not in raised.value.message
    with pytest.raises(InvalidArgument, match="no file"):
        load_inferlet(tmp_path / "missing.py")


# -- the thread and the watchdog -------------------------------------------------------------------


@pytest.fixture
def reports() -> list[BlockedLoop]:
    return []


@pytest.fixture
def runtime(reports: list[BlockedLoop]) -> Iterator[NativeRuntime]:
    runtime = NativeRuntime(
        NativeConfig(blocked_after_s=0.01, grace_s=0.0), on_blocked=reports.append
    )
    runtime.start()
    yield runtime
    runtime.close()
    runtime.close()


async def test_programs_run_on_a_thread_of_their_own(runtime: NativeRuntime, ports: Ports) -> None:
    async def main(api: Api) -> int:
        await api.synchronize()
        await api.send("hello")
        return threading.get_ident()

    running = runtime.launch(program(main), [], ports.connect)
    assert await running.receive() == "hello"
    assert await running.result() != threading.get_ident()


async def test_closing_the_runtime_ends_its_programs(ports: Ports) -> None:
    runtime = NativeRuntime(NativeConfig(grace_s=0.0))
    with pytest.raises(Draining):
        runtime.launch(program(awaiting_a_message), [], ports.connect)
    runtime.start()
    running = runtime.launch(program(awaiting_a_message), [], ports.connect)
    runtime.close()
    assert running.state is ProgramState.CANCELLED
    with pytest.raises(Draining):
        runtime.launch(program(awaiting_a_message), [], ports.connect)


async def test_a_blocked_loop_is_reported_with_its_program(ports: Ports) -> None:
    """Whatever else holds up the loop of a busy machine is reported too, without the program. The
    hog lets the loop answer now and then: a probe is reported once."""
    unblock = threading.Event()
    reports: list[BlockedLoop] = []

    def on_blocked(blocked: BlockedLoop) -> None:
        if "in hog" in blocked.stack:
            reports.append(blocked)
            unblock.set()

    async def hog(api: Api) -> str:
        while not unblock.wait(0.2):  # noqa: ASYNC110
            await asyncio.sleep(0)
        return "released"

    runtime = NativeRuntime(NativeConfig(blocked_after_s=0.01), on_blocked=on_blocked)
    runtime.start()
    try:
        running = runtime.launch(Inferlet("the_hog", hog), [], ports.connect)
        assert await running.result() == "released"
    finally:
        runtime.close()
    assert reports[0].program == f"{running.id} (the_hog)"


async def test_a_terminated_program_reports_unknown_codes_too(
    host: ProgramHost, ports: Ports
) -> None:
    running = host.launch(program(awaiting_a_message), [], ports.connect)
    await asyncio.sleep(0)
    ports.port.sink.on_terminated(ErrorRecord("program_terminated", "idle"))
    with pytest.raises(ProgramTerminated, match="idle"):
        await running.result()
