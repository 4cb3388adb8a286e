"""Grammars in their own processes: their answers, and that one that exceeds its limits ends
alone."""

from __future__ import annotations

import errno
import json
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from engine_checkpoints import VOCAB_SIZE
from numpy.typing import NDArray

from quire.core.decoding import GrammarSpec
from quire.core.errors import CapacityError, GrammarError
from quire.engine.sampling.grammar_hosts import MAX_IDLE, MAX_SEQUENCES, GrammarHosts
from quire.engine.sampling.grammar_limits import GrammarLimits
from quire.engine.sampling.grammar_link import Link
from quire.engine.sampling.grammar_masks import forbidden_tokens
from quire.engine.sampling.grammar_matchers import ConfinedMatcher
from quire.engine.tokenizer import load_tokenizer

SCHEMA = GrammarSpec(
    "json_schema",
    json.dumps(
        {
            "type": "object",
            "properties": {"name": {"enum": ["ann", "bob"]}, "count": {"type": "integer"}},
            "required": ["name", "count"],
        }
    ),
)
WORD = GrammarSpec("regex", "ab(cd|xyz)")

SLOW_TO_COMPILE = GrammarSpec(
    "json_schema",
    json.dumps(
        {"type": "array", "prefixItems": [{"multipleOf": 1009 + i} for i in range(500)]}
        | {"items": {"type": "integer"}}
    ).replace('"multipleOf"', '"type": "integer", "multipleOf"'),
)
"""Compiles for 20 s without using any of the library's fuel."""

LARGE = GrammarSpec(
    "json_schema", '{"type": "integer", "multipleOf": 62615533, "minimum": -1000000000000000000}'
)
"""Its automaton takes gigabytes."""


def trap(depth: int, num_rules: int = 398, num_alternatives: int = 40) -> GrammarSpec:
    """After this number of letters comes a ``!``, after which each of many rules may be each of
    many others."""
    rules = [
        f"r{i}: "
        + " | ".join(f"r{j}" for j in range(i + 1, min(i + num_alternatives, num_rules)))
        + ' | "a"'
        for i in range(num_rules - 1)
    ]
    start = f'start: /[a-z]{{{depth}}}/ ("." /[a-z]+/ "." | "!" /[a-z]{{5}}/ r0)'
    return GrammarSpec("lark", "\n".join([start, *rules, f'r{num_rules - 1}: "a"']))


PATIENT = GrammarLimits(compile_s=1000.0, step_s=1000.0, replay_s=1000.0, memory_bytes=1 << 30)
"""In processor time, which no slow machine reaches."""


@pytest.fixture
def make_hosts(checkpoint: Callable[[str], Path]) -> Iterator[Callable[..., GrammarHosts]]:
    made: list[GrammarHosts] = []

    def make(limits: GrammarLimits = PATIENT) -> GrammarHosts:
        made.append(GrammarHosts(str(checkpoint("llama")), VOCAB_SIZE, limits))
        return made[-1]

    yield make
    for hosts in made:
        hosts.close()


@pytest.fixture
def encode(checkpoint: Callable[[str], Path]) -> Callable[[str], list[int]]:
    return load_tokenizer(str(checkpoint("llama"))).encode


Hosts = Callable[..., GrammarHosts]
Encode = Callable[[str], list[int]]


def follow(hosts: GrammarHosts, matcher: ConfinedMatcher, tokens: Sequence[int]) -> bool:
    """Whether nothing can follow ``tokens``."""
    for token in tokens:
        hosts.advance([matcher], [token])
        matcher.settle()
    return matcher.settle()


def mask_of(matcher: ConfinedMatcher) -> NDArray[np.bool_]:
    forbidden_GV, errors = forbidden_tokens([matcher], VOCAB_SIZE)
    assert errors == [None]
    return forbidden_GV[0]


def test_sequences_of_one_grammar_go_on_by_themselves(make_hosts: Hosts, encode: Encode) -> None:
    hosts = make_hosts()
    one, other = hosts.open(WORD, encode("ab")), hosts.open(WORD, encode("ab"))
    assert one.host is other.host
    assert follow(hosts, one, encode("xyz"))
    assert not follow(hosts, other, encode("c"))
    assert follow(hosts, other, encode("d"))


def test_masks_together_are_the_masks_alone(make_hosts: Hosts, encode: Encode) -> None:
    hosts = make_hosts()
    sources = ["[a-c]{3}x", "(red|green) [0-9]{3}", "a*", "ab?c"]
    matchers = [hosts.open(GrammarSpec("regex", source)) for source in sources]
    together, errors = forbidden_tokens(matchers, VOCAB_SIZE)
    assert errors == [None] * 4
    for matcher, mask in zip(matchers, together, strict=True):
        assert np.array_equal(mask_of(matcher), mask)
    assert len({mask.tobytes() for mask in together}) == 4
    (letter,) = encode("a")
    hosts.advance(matchers, [letter] * 4)
    errors = forbidden_tokens(matchers, VOCAB_SIZE)[1]
    assert [error is None for error in errors] == [True, False, True, True]


def test_a_matcher_is_opened_after_the_output_so_far(make_hosts: Hosts, encode: Encode) -> None:
    hosts = make_hosts()
    written = encode('{"name": "ann", ')
    matcher = hosts.open(SCHEMA)
    follow(hosts, matcher, written)
    assert np.array_equal(mask_of(matcher), mask_of(hosts.open(SCHEMA, written)))
    with pytest.raises(GrammarError, match="cannot be followed"):
        hosts.open(SCHEMA, encode("[")).settle()


def test_a_grammar_keeps_its_process_and_a_process_its_sequences(make_hosts: Hosts) -> None:
    hosts = make_hosts()
    full = [hosts.open(WORD) for _ in range(MAX_SEQUENCES + 1)]
    assert len({matcher.host for matcher in full}) == 2
    for matcher in full:
        matcher.close()
        matcher.close()
    again = hosts.open(WORD)
    assert again.host in {matcher.host for matcher in full}
    again.close()
    idle = []
    for number in range(MAX_IDLE + 3):
        idle.append(hosts.open(GrammarSpec("regex", f"a{number}")))
        idle[-1].mask()
        idle[-1].close()
    assert sum(matcher.host.ended for matcher in idle) == 2
    assert again.host.ended, "it was used longest ago"


def test_a_bad_grammar_is_refused_by_its_first_mask(make_hosts: Hosts) -> None:
    hosts = make_hosts()
    for _ in range(2):
        matcher = hosts.open(GrammarSpec("regex", "(a"))
        for ask in (matcher.settle, matcher.mask):
            with pytest.raises(GrammarError, match="unclosed group"):
                ask()


@pytest.mark.parametrize(
    ("grammar", "limits"),
    [
        (SLOW_TO_COMPILE, GrammarLimits(compile_s=0.05, step_s=1000.0)),
        (LARGE, GrammarLimits(compile_s=1000.0, step_s=1000.0, memory_bytes=32 << 20)),
    ],
    ids=["time", "memory"],
)
def test_a_grammar_that_exceeds_compilation_limits_ends_alone(
    grammar: GrammarSpec, limits: GrammarLimits, make_hosts: Hosts, encode: Encode
) -> None:
    hosts = make_hosts(limits)
    good = hosts.open(WORD)
    good.mask()
    many = [hosts.open(grammar) for _ in range(2)]
    for matcher in many:
        with pytest.raises(GrammarError, match=f"more than {limits.compile_s:g} s of .* compile"):
            matcher.mask()
    with pytest.raises(GrammarError, match="to compile"):
        hosts.try_out(grammar, 1)
    assert follow(hosts, good, encode("abcd"))


def test_a_grammar_that_becomes_too_much_fails_the_sequence_that_goes_there(
    make_hosts: Hosts, encode: Encode
) -> None:
    """The first fifty masks of all three take no time, so the cost cannot be known in advance."""
    hosts = make_hosts(GrammarLimits(compile_s=1000.0, step_s=0.1))
    grammar = trap(depth=50)
    hosts.try_out(grammar, 5)
    (x,), (dot,), (bang,) = encode("x"), encode("."), encode("!")
    stays, falls, ends = (hosts.open(grammar) for _ in range(3))
    for matcher in (stays, falls, ends):
        assert not follow(hosts, matcher, [x] * 50)
    assert stays.host is falls.host
    for tokens in [(dot, bang, dot), (x, x, x), (x, x, x), (x, x, x), (x, x, x), (x, x, dot)]:
        hosts.advance([stays, falls, ends], tokens)
        ended = ends.settle()
    assert ended
    with pytest.raises(GrammarError, match="more than 100 ms of processor time for one token"):
        falls.mask()
    with pytest.raises(GrammarError, match="for one token"):
        falls.settle()
    assert ends.settle()
    assert stays.host is not ends.host, "each has a process of its own now"
    alone = [stays.host, ends.host]
    assert not follow(hosts, hosts.open(grammar), [x])
    assert not any(host.ended for host in alone), "they have sequences"
    assert follow(hosts, stays, [dot])
    for matcher in (stays, falls, ends):
        matcher.close()
    hosts.open(WORD)
    assert all(host.ended for host in alone), "nobody comes back to them"


def test_the_first_process_is_replaced_when_something_ends_it(make_hosts: Hosts) -> None:
    hosts = make_hosts()
    hosts.open(WORD).mask()
    pid = hosts.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert not hosts.open(GrammarSpec("regex", "b")).settle()
    assert hosts.pid != pid


def test_all_processes_end_with_their_owner(make_hosts: Hosts) -> None:
    hosts = make_hosts()
    matcher = hosts.open(WORD)
    matcher.mask()
    pid = hosts.pid
    assert pid is not None
    hosts.close()
    hosts.close()
    assert hosts.pid is None
    assert matcher.host.ended
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_tokens_before_a_sequence_are_followed_within_one_limit(
    make_hosts: Hosts, encode: Encode
) -> None:
    hosts = make_hosts(GrammarLimits(compile_s=1000.0, step_s=1000.0, replay_s=0.01))
    grammar = GrammarSpec("regex", "[ab]*")
    good = hosts.open(grammar, encode("ab"))
    good.mask()
    many = hosts.open(grammar, encode("ab") * 500_000)
    with pytest.raises(GrammarError, match=r"0\.01 s for what was generated before"):
        many.mask()
    assert not follow(hosts, good, encode("a"))


def test_answers_that_nobody_reads_do_not_keep_a_process_waiting(make_hosts: Hosts) -> None:
    hosts = make_hosts()

    def open_and_close() -> None:
        for _ in range(3000):
            hosts.open(WORD).close()

    working = threading.Thread(target=open_and_close, daemon=True)
    working.start()
    working.join(120.0)
    assert not working.is_alive(), "both sides wait for each other"
    assert not hosts.open(WORD).settle()


def test_a_sequence_is_not_blamed_for_one_that_has_left(make_hosts: Hosts, encode: Encode) -> None:
    """The one that ends its process is closed before anybody knows of it."""
    hosts = make_hosts(GrammarLimits(compile_s=1000.0, step_s=0.1, replay_s=1000.0))
    grammar = trap(depth=50)
    (x,), (bang,) = encode("x"), encode("!")
    falls = hosts.open(grammar)
    follow(hosts, falls, [x] * 50 + [bang])
    for _ in range(5):
        hosts.advance([falls], [x])
    falls.close()
    stays = hosts.open(grammar)
    assert stays.host is falls.host
    assert not follow(hosts, stays, [x])
    assert stays.host is not falls.host


def test_where_no_process_can_be_started_for_a_sequence_it_fails_alone(
    make_hosts: Hosts, encode: Encode, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts = make_hosts()
    one, other = hosts.open(WORD), hosts.open(WORD)
    one.mask()
    other.mask()
    num_left, fork = 1, hosts._first.fork

    def few() -> Link:
        nonlocal num_left
        num_left -= 1
        if num_left < 0:
            raise GrammarError("no process for the grammar can be started: try again later")
        return fork()

    monkeypatch.setattr(hosts._first, "fork", few)
    one.host._link.close()  # as if its process had ended
    hosts.advance([one, other], encode("a") * 2)
    outcomes = []
    for matcher in (one, other):
        try:
            outcomes.append(matcher.settle())
        except GrammarError as exc:
            outcomes.append(exc.message)
    assert outcomes == [False, "no process for the grammar can be started: try again later"]


def test_a_system_without_room_for_a_process_is_no_fault_of_the_grammar(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr("quire.engine.sampling.grammar_hosts.subprocess.Popen", full)
    hosts = GrammarHosts()
    with pytest.raises(CapacityError, match="no process for the grammar can be started"):
        hosts.try_out(WORD, 1)
    hosts.close()
