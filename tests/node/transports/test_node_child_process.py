"""What processes of a node do when it is gone, and what is left when they are."""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable

import msgspec
import pytest

from quire.core.errors import EngineLost
from quire.core.event_loops import new_event_loop
from quire.node.transports.child import LifeLimits, NodeChild
from quire.node.transports.child_process import EXIT_NODE_GONE
from quire.node.transports.messages import RECORD_FORMAT

CHILD = """
import io, sys, threading, time
from quire.node.transports.child_process import answer_heartbeats, take_stdin, take_stdout
threading.Thread(target=answer_heartbeats, args=(take_stdin(), take_stdout(), lambda: 0.0)).start()
print("up", file=sys.stderr, flush=True)
threading.Event().wait()
"""


CHATTY = """
import logging, msgspec
from quire.node.transports.child_process import LifeLine
class Order(msgspec.Struct): size: int
LifeLine().read_order(Order)
logging.getLogger("torch._subclasses.fake_tensor").info("figures of a cache")
logging.getLogger("torch.nn").warning("a warning")
logging.getLogger("quire.engine").info("what Quire says")
"""


def test_libraries_in_a_process_log_no_more_than_warnings() -> None:
    child = subprocess.run(
        [sys.executable, "-P", "-c", CHATTY],
        input=b'{"size":1}\n',
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        timeout=300,
        check=True,
    )
    said = child.stderr.decode()
    assert "a warning" in said
    assert "what Quire says" in said
    assert "figures of a cache" not in said


@pytest.mark.parametrize("last", ["nothing", "a heartbeat"])
def test_a_process_whose_node_is_gone_ends(last: str) -> None:
    """Be it that its lines end, or that its answer to the last of them is taken by nobody."""
    answers, answered = os.pipe()
    child = subprocess.Popen(
        [sys.executable, "-P", "-c", CHILD],
        stdin=subprocess.PIPE,
        stdout=answered,
        stderr=subprocess.PIPE,
    )
    os.close(answered)
    assert child.stdin is not None
    assert child.stderr is not None
    assert child.stderr.readline() == b"up\n"
    os.close(answers)
    if last == "nothing":
        child.stdin.close()
    else:
        child.stdin.write(b"{}\n")  # and the write end stays open, as if inherited by another
        child.stdin.flush()
    assert child.wait(60) == EXIT_NODE_GONE
    child.stdin.close()
    child.stderr.close()


PARENT = """
import subprocess, sys
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"])
sys.exit(7)
"""


@pytest.mark.parametrize("loop_factory", [asyncio.new_event_loop, new_event_loop])
def test_what_a_process_has_started_ends_with_it(
    loop_factory: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    """It has the process's pipes, and would hide that the process is gone. Engines are started on
    control's loop, encoders on the edge's, whose processes have no class of asyncio's."""

    async def parent() -> str:
        ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        command = (sys.executable, "-P", "-c", PARENT)
        child = NodeChild("parent", ended.set_result, LifeLimits(), command)
        async with asyncio.timeout(60):
            await child.spawn(msgspec.Struct())
            reason = await ended
            await child.close()
        return reason

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        assert "exited with 7" in runner.run(parent())


OWN_SESSION = """
import subprocess, sys
subprocess.Popen(["sleep", "30"], start_new_session=True)
print("last words", file=sys.stderr)
sys.exit(7)
"""


@pytest.mark.parametrize("loop_factory", [asyncio.new_event_loop, new_event_loop])
def test_the_end_of_a_process_is_noticed_while_others_hold_its_log(
    loop_factory: Callable[[], asyncio.AbstractEventLoop], caplog: pytest.LogCaptureFixture
) -> None:
    """Ranks have groups of their own: they do not end with the group of their engine. Who waits for
    the process is told at once, and the log is read to its end after that."""

    async def parent() -> tuple[str, str]:
        ended: asyncio.Future[tuple[str, str]] = asyncio.get_running_loop().create_future()
        command = (sys.executable, "-P", "-c", OWN_SESSION)

        def on_exit(reason: str) -> None:
            ended.set_result((reason, caplog.text))

        child = NodeChild("parent", on_exit, LifeLimits(last_words_s=0.5), command)
        async with asyncio.timeout(60):
            await child.spawn(msgspec.Struct())
            told = await ended
            await child.close()
        return told

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        reason, logged_before = runner.run(parent())
    assert "exited with 7" in reason
    assert "its last words" not in logged_before
    assert "its last words:\nlast words" in caplog.text


async def test_what_cannot_be_started_is_lost_and_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A machine that has no process to spare has one later: the supervisor's business."""
    child = NodeChild("child", print, LifeLimits(), (sys.executable,))

    async def refuse(*args: object, **kwargs: object) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(asyncio.get_running_loop(), "subprocess_exec", refuse)
    with pytest.raises(EngineLost, match=r"engine child: .*temporarily unavailable"):
        await child.spawn(msgspec.Struct())


RECORDS = """
import logging, sys
logging.basicConfig(format=FORMAT, level=logging.INFO)
logging.info("loaded")
try:
    1 / 0
except ZeroDivisionError:
    logging.exception("a step failed")
logging.warning("on with the next")
"""


async def test_a_process_s_records_are_logged_at_their_own_levels(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A traceback with the record that it belongs to: whoever logs errors only sees all of it."""
    caplog.set_level(logging.INFO)
    ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    script = RECORDS.replace("FORMAT", repr(RECORD_FORMAT))
    child = NodeChild("records", ended.set_result, LifeLimits(), (sys.executable, "-c", script))
    await child.spawn(msgspec.defstruct("Order", [])())
    await ended
    await child.close()  # the log is over
    logged = [(record.levelname, record.getMessage()) for record in caplog.records]
    assert logged[:2] == [("INFO", "root: loaded"), ("ERROR", "root: a step failed")]
    assert ("ERROR", "ZeroDivisionError: division by zero") in logged
    assert ("WARNING", "root: on with the next") in logged


async def test_a_process_that_owes_an_answer_is_known_to() -> None:
    """Long before it is taken for frozen."""
    answering = (
        "import sys\n"
        "sys.stdin.readline()\n"
        "sys.stdin.readline()\n"
        "print('{\"busy_s\": 0}', flush=True)\n"
        "sys.stdin.read()"
    )
    limits = LifeLimits(heartbeat_s=0.01, loading_s=600)
    child = NodeChild("silent", print, limits, (sys.executable, "-c", answering))
    await child.spawn(msgspec.defstruct("Order", [])())
    assert child.silent_s() == 0.0
    # the first heartbeat until the process has started, the second for good
    for owes in (True, False, True):
        while (child.silent_s() > 0) is not owes:  # noqa: ASYNC110
            await asyncio.sleep(0)
    await child.close()


ANSWERING = (
    "import sys\n"
    "sys.stdin.readline()\n"
    "while sys.stdin.readline():\n"
    "    print('{\"busy_s\": %s}', flush=True)\n"
)


async def test_what_the_node_itself_was_stopped_for_is_no_silence() -> None:
    ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    command = (sys.executable, "-c", ANSWERING % 0)
    limits = LifeLimits(heartbeat_s=0.05, loading_s=60)
    child = NodeChild("answers", ended.set_result, limits, command)
    await child.spawn(msgspec.defstruct("Order", [])())

    async def answers() -> None:
        for owes in (True, False):
            while (child.silent_s() > 0) is not owes:  # noqa: ASYNC110
                await asyncio.sleep(0)

    await answers()  # it runs
    child.frozen_after_s = 3.0
    while not child.silent_s():  # noqa: ASYNC110
        await asyncio.sleep(0)
    time.sleep(3.5)  # noqa: ASYNC251 - the loop stands still, as under SIGSTOP
    for _ in range(2):
        await answers()
    assert not ended.done()
    await child.close()


async def test_a_batch_that_runs_for_too_long_ends_the_process() -> None:
    ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    command = (sys.executable, "-c", ANSWERING % 100)
    child = NodeChild("busy", ended.set_result, LifeLimits(heartbeat_s=0.01), command)
    await child.spawn(msgspec.defstruct("Order", [])())
    for owes in (True, False):  # 600 s are allowed at first
        while (child.silent_s() > 0) is not owes:  # noqa: ASYNC110
            await asyncio.sleep(0)
    assert not ended.done()
    child.stuck_after_s = 99.0
    assert await ended == "one batch has been running for 100 s"
    await child.close()
