"""The host's parts one by one: rates, the cache, the compiler, answers; and the guest's loop."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import sys
from pathlib import Path

import pytest

from quire.core.errors import ConfigError, InvalidArgument
from quire.programs.chat.template import ChatTemplate
from quire.programs.sandbox.answers import Answers, GuestTools
from quire.programs.sandbox.limits import CallRate
from quire.programs.sandbox.program import is_module
from quire.programs.sandbox.python.guest.loop import GuestLoop
from quire.programs.sandbox.wasm.cache import BuildCache
from quire.programs.sandbox.wasm.compiler import Compiler
from quire.testing import FakeTokenizer


def test_a_seconds_worth_of_calls_may_come_at_once() -> None:
    rate = CallRate(10, now_s=0.0)
    assert rate.take(10, 0.0)
    assert not rate.take(1, 0.0)


def test_calls_come_back_with_time_up_to_a_seconds_worth() -> None:
    rate = CallRate(10, now_s=0.0)
    assert rate.take(10, 0.0)
    assert rate.take(5, 0.5)
    assert rate.take(10, 100.0)
    assert not rate.take(1, 100.0)


@pytest.fixture
def cache(tmp_path: Path) -> BuildCache:
    return BuildCache(tmp_path / "cache")


def test_a_directory_that_others_may_write_is_no_cache(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    with pytest.raises(ConfigError, match="chmod 700"):
        BuildCache(tmp_path)


def test_only_the_newest_files_are_kept(cache: BuildCache) -> None:
    for age, name in enumerate(("a-1", "a-2", "a-3", "b-1")):
        os.utime(cache.put(name, name.encode()), (1000 + age, 1000 + age))
    cache.keep_newest("a-", 2)
    assert [cache.find(name) is not None for name in ("a-1", "a-2", "a-3", "b-1")] == [
        False, True, True, True,
    ]  # fmt: skip


def test_a_full_disk_is_told_and_leaves_nothing(
    cache: BuildCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(source: Path, target: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(ConfigError, match=r"cannot keep a \(3 bytes\): No space left on device"):
        cache.put("a", b"abc")
    assert list((tmp_path / "cache").iterdir()) == []


def compiler_of(cache: BuildCache, code: str) -> Compiler:
    return Compiler(cache, (sys.executable, "-c", code))


def test_a_compiler_that_takes_too_long_is_stopped(cache: BuildCache, tmp_path: Path) -> None:
    slow = compiler_of(cache, "import time; time.sleep(600)")
    with pytest.raises(InvalidArgument, match=r"took more than 0\.05 s"):
        slow.compile("module", tmp_path, "x", 0.05)
    slow.close()


def test_a_compiler_that_crashes_is_told_and_replaced(cache: BuildCache, tmp_path: Path) -> None:
    crashing = compiler_of(cache, "import os, sys; sys.stdin.readline(); os.abort()")
    for _ in range(2):
        with pytest.raises(ConfigError, match="crashed"):
            crashing.compile("module", tmp_path, "x", 60.0)
    crashing.close()


def test_a_compiler_is_kept_for_the_next_file(cache: BuildCache, tmp_path: Path) -> None:
    code = """
import json, os, sys
for line in sys.stdin:
    kind, source, target = json.loads(line)
    open(target, "w").write(str(os.getpid()))
    print("null", flush=True)
"""
    compiler = compiler_of(cache, code)
    first = compiler.compile("module", tmp_path, "first", 60.0).read_text()
    second = compiler.compile("module", tmp_path, "second", 60.0).read_text()
    assert first == second
    compiler.close()


@pytest.fixture
def answers() -> Answers:
    template = ChatTemplate("{% for m in messages %}{{ m.content }};{% endfor %}")
    tools = GuestTools(FakeTokenizer(), template)
    return Answers({"m": tools, "bare": GuestTools(FakeTokenizer(), None)}, lambda *_: None)


def ask(answers: Answers, *question: object) -> tuple[object, str | None]:
    answer = json.loads(answers(json.dumps(question)))
    error = answer["error"]
    return answer["value"], None if error is None else error["message"]


def test_questions_are_answered(answers: Answers) -> None:
    tokens, _ = ask(answers, "tokenize", "m", "hello", True)
    assert ask(answers, "detokenize", "m", tokens, True) == ("hello", None)
    said, _ = ask(answers, "render", "m", {"messages": [{"role": "user", "content": "hi"}]})
    assert said == "hi;"
    assert answers.take_count() == 3
    assert answers.take_count() == 0


@pytest.mark.parametrize(
    "question",
    [
        [], ["nothing"], ["tokenize"], ["tokenize", "m", 5, True], ["tokenize", "x", "a", True],
        ["tokenize", "m", "a" * ((256 << 10) + 1), True], ["detokenize", "m", [-1], True],
        ["detokenize", "m", [97] * ((256 << 10) + 1), True],
        ["detokenize", "m", [1 << 40], True], ["token_bytes", "m", -5, 3],
        ["token_bytes", "m", 1 << 40, (1 << 40) + 64], ["render", "bare", {"messages": []}],
        ["render", "m", {"messages": [], "nonsense": 1}], ["render", "m", {}], {"a": 1}, "text", 5,
    ],
    ids=str,
)  # fmt: skip
def test_what_is_no_question_is_an_error_and_never_raised(
    answers: Answers, question: object
) -> None:
    answer = json.loads(answers(json.dumps(question)))
    assert answer["value"] is None
    assert answer["error"]["message"]


def test_text_that_is_no_json_is_an_error(answers: Answers) -> None:
    assert json.loads(answers("{"))["error"]["code"] == "invalid_argument"


def test_the_guests_loop_runs_what_asyncio_offers() -> None:
    loop = GuestLoop()
    said: list[object] = []

    async def main() -> None:
        said.append(await asyncio.gather(asyncio.sleep(0, 1), asyncio.to_thread(sum, [1, 2])))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await asyncio.sleep(60)
        async with asyncio.TaskGroup() as group:
            group.create_task(asyncio.sleep(0)).add_done_callback(lambda _: said.append("done"))
        await asyncio.sleep(60)

    task = loop.create_task(main())
    for _ in range(4):  # a timer that is due runs in the next turn
        loop.turn()
    assert said == [[1, 3], "done"]
    waits_s = loop.next_timer_s()
    assert waits_s is not None
    assert 50 < waits_s <= 60
    task.cancel()
    loop.turn()
    assert task.cancelled()
    assert loop.next_timer_s() is None


def test_modules_are_known_by_how_they_begin() -> None:
    assert is_module(b"\0asm\1\0\0\0")
    assert not is_module(b"import asyncio")
