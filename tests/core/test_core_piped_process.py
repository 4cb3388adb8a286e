import gc
import os
import sys

import pytest

from quire.core.piped_process import PipedProcess

ECHO = (
    sys.executable,
    "-S",
    "-c",
    "import sys\nfor line in sys.stdin: print(line, end='', flush=True)",
)


def test_it_answers_what_it_is_asked() -> None:
    process = PipedProcess(ECHO, own_session=True)
    process.questions.write(b"one\n")
    process.questions.flush()
    assert process.answers.readline() == b"one\n"
    process.close()


def test_close_ends_it_with_questions_that_were_not_sent() -> None:
    process = PipedProcess(ECHO, own_session=False)
    process.kill()
    process.wait()
    process.questions.write(b"never sent")
    for _ in range(2):
        process.close()
    assert process.questions.closed
    assert process.answers.closed
    assert not is_there(process.pid)


def test_it_ends_when_nobody_holds_it() -> None:
    pid = PipedProcess(ECHO, own_session=True).pid
    gc.collect()
    assert not is_there(pid)


@pytest.mark.parametrize("own_session", [True, False])
def test_a_session_of_its_own(own_session: bool) -> None:
    process = PipedProcess(ECHO, own_session=own_session)
    assert (os.getsid(process.pid) == process.pid) == own_session
    process.close()


def is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
