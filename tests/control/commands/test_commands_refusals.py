"""Bad input: a clear error to that command, its queue poisoned, nobody else disturbed."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import numpy as np
import pytest
from control_world import World, alone

from quire.core import commands as c
from quire.core.calls import Issue, ResetQueue
from quire.core.decoding import GrammarSpec, Processor, SamplerSpec, StopSpec
from quire.core.errors import ErrorRecord, InvalidArgument
from quire.core.events import Called
from quire.core.ids import ProgramId, QueueId
from quire.core.quotas import Quotas

Make = Callable[[World], c.Command]


def drawn(temperature: object) -> SamplerSpec:
    params = {"temperature": temperature}
    return SamplerSpec((Processor("temperature", params),), greedy=False)  # type: ignore[arg-type]


BAD: dict[str, tuple[Make, str]] = {
    "a grammar that was refused before": (
        lambda w: msgspec.structs.replace(
            w.decode([0], [1]), refusal=ErrorRecord("invalid_grammar", "too much")
        ),
        "invalid_grammar",
    ),
    "unknown page": (lambda w: w.dealloc([99]), "unknown_handle"),
    "another program's page": (lambda w: w.decode([70], [1]), "unknown_handle"),
    "page twice in alloc": (lambda w: w.alloc([5, 5]), "invalid_argument"),
    "page in use": (lambda w: w.alloc([0]), "invalid_argument"),
    "page twice in context": (
        lambda w: w.decode([0], [1], context=[1, 1]), "invalid_argument"),
    "page twice in output": (lambda w: w.decode([0, 0], [1], context=[0]), "invalid_argument"),
    "another program's page as output alone": (
        lambda w: w.decode([70], [1], context=[0]), "unknown_handle"),
    "embed in use": (lambda w: w.alloc_embeds([0]), "invalid_argument"),
    "too many embeds": (lambda w: w.alloc_embeds(range(1000, 1300)), "never_fits"),
    "unknown embed": (lambda w: w.forward([], [999], [0]), "unknown_handle"),
    "embed never written": (lambda w: w.forward([], [1], [0]), "invalid_argument"),
    "no inputs": (lambda w: w.forward([], [], [0]), "invalid_argument"),
    "more outputs than inputs": (
        lambda w: w.forward([], [0], [0], [0, 1]), "invalid_argument"),
    "mask of a wrong shape": (
        lambda w: w.forward([0], [0], [], mask=[[True]]), "invalid_argument"),
    "output too small": (lambda w: w.decode([0], range(5)), "invalid_argument"),
    "output has too little room left": (
        lambda w: w.decode([2], range(3), context=[]), "invalid_argument"),
    "filled page behind the cursor": (
        lambda w: w.decode([1, 2], [1], context=[]), "invalid_argument"),
    "working set above the pool": (
        lambda w: w.decode(range(100, 120), range(70)), "never_fits"),
    "token not in the vocabulary": (lambda w: w.decode([0], [100_000]), "invalid_argument"),
    "negative position": (lambda w: w.decode([0], [1], position=-1), "invalid_argument"),
    "prompt beyond the model": (
        lambda w: w.decode([0], [1], position=4096), "context_length_exceeded"),
    "positions of another length": (
        lambda w: c.EmbedText(id=w.id(), tokens=[1], positions=[1, 2], embeds=[0]),
        "invalid_argument"),
    "an empty token slot": (
        lambda w: c.EmbedText(id=w.id(), tokens=[], positions=[0], embeds=[0], token_slots=[7]),
        "unknown_handle"),
    "top_k above the quota": (
        lambda w: c.GetNextDist(id=w.id(), embeds=[0], top_k=257), "never_within_quota"),
    "logprobs above the quota": (
        lambda w: w.decode([0], [1], num_logprobs=300), "never_within_quota"),
    "negative max_tokens": (
        lambda w: w.decode([0], [1], stop=StopSpec(max_tokens=-1)), "invalid_argument"),
    "a negative stop token": (
        lambda w: w.decode([0], [1], stop=StopSpec(1, token_ids=(-1,))), "invalid_argument"),
    "a stop token that no model has": (
        lambda w: w.decode([0], [1], stop=StopSpec(1, token_ids=(1 << 63,))), "invalid_argument"),
    "too long a history": (
        lambda w: w.decode([0], [1], history=[1] * (1 + (1 << 18))), "invalid_argument"),
    "too many stop tokens": (
        lambda w: w.decode([0], [1], stop=StopSpec(1, token_ids=(2,) * 1025)), "invalid_argument"),
    "too many stop strings": (
        lambda w: w.decode([0], [1], stop=StopSpec(1, strings=(b"x",) * 1025)),
        "invalid_argument"),
    "stop strings of too many bytes": (
        lambda w: w.decode([0], [1], stop=StopSpec(1, strings=(b"x" * (1 << 16), b"x"))),
        "invalid_argument"),
    "no number for max_tokens": (
        lambda w: w.decode([0], [1], stop=StopSpec(max_tokens=None)), "invalid_argument"),
    "half a token for max_tokens": (
        lambda w: w.decode([0], [1], stop=StopSpec(max_tokens=1.5)), "invalid_argument"),
    "min_tokens of more than 64 bits": (
        lambda w: w.decode([0], [1], stop=StopSpec(1 << 70, min_tokens=1 << 70)),
        "invalid_argument"),
    "numpy's temperature": (
        lambda w: w.decode([0], [1], sampler=drawn(np.float32(0.5))), "invalid_argument"),
    "text for a temperature's number of a step": (
        lambda w: c.Sample(id=w.id(), embeds=[0], positions=[0], sampler=drawn(object())),
        "invalid_argument"),
    "half a surrogate in a grammar": (
        lambda w: w.decode([0], [1], grammar=GrammarSpec("lark", "\ud800")), "invalid_argument"),
    "half a position": (lambda w: w.decode([0], [1], position=0.5), "invalid_argument"),
    "text for tokens": (lambda w: w.decode([0], ["1"]), "invalid_argument"),
    "half a token": (lambda w: w.decode([0], [1.5]), "invalid_argument"),
    "half a token to import": (
        lambda w: c.ImportPrefix(id=w.id(), tokens=[1.5], pages=[80]), "invalid_argument"),
    "a token of more than 64 bits": (lambda w: w.decode([0], [1 << 63]), "invalid_argument"),
    "a long prompt with a token not in the vocabulary": (
        lambda w: w.decode(range(100, 120), [*range(70), 100_000]), "invalid_argument"),
    "a long prompt with a negative token": (
        lambda w: w.decode(range(100, 120), [*range(70), -1]), "invalid_argument"),
    "nothing for a position": (
        lambda w: c.EmbedText(id=w.id(), tokens=[1], positions=[None], embeds=[0]),
        "invalid_argument"),
    "half a slot": (lambda w: c.TruncatePage(id=w.id(), page=2, fill=1.5), "invalid_argument"),
    "a list for a name": (lambda w: c.ReleaseExport(id=w.id(), name=["x"]), "invalid_argument"),
    "a list for a prefix": (lambda w: c.ListExports(id=w.id(), prefix=["x"]), "invalid_argument"),
    "a list for an import's name": (
        lambda w: c.ImportPages(id=w.id(), name=["x"], pages=[80]), "invalid_argument"),
    "an export's name that is a text": (
        lambda w: c.ExportPages(id=w.id(), name="x" * 513, pages=[2]), "invalid_argument"),
    "an export's name that is no text": (
        lambda w: c.ExportPages(id=w.id(), name="\ud800", pages=[2]), "invalid_argument"),
    "truncate beyond the fill": (
        lambda w: c.TruncatePage(id=w.id(), page=2, fill=4), "invalid_argument"),
    "truncate beyond the page": (
        lambda w: c.TruncatePage(id=w.id(), page=2, fill=5), "invalid_argument"),
    "mask of a wrong length": (
        lambda w: c.MaskPage(id=w.id(), page=2, visible=[True]), "invalid_argument"),
    "copy of empty slots": (
        lambda w: c.CopyPage(
            id=w.id(), source=2, source_offset=2, target=0, target_offset=0, num_slots=2),
        "invalid_argument"),
    "copy with a gap": (
        lambda w: c.CopyPage(
            id=w.id(), source=2, source_offset=0, target=0, target_offset=1, num_slots=1),
        "invalid_argument"),
    "copy across the page": (
        lambda w: c.CopyPage(
            id=w.id(), source=2, source_offset=0, target=0, target_offset=3, num_slots=2),
        "invalid_argument"),
    "copy of no slots": (
        lambda w: c.CopyPage(
            id=w.id(), source=2, source_offset=0, target=0, target_offset=0, num_slots=0),
        "invalid_argument"),
    "copy from before the page": (
        lambda w: c.CopyPage(
            id=w.id(), source=2, source_offset=-1, target=0, target_offset=0, num_slots=1),
        "invalid_argument"),
    "copy onto itself": (
        lambda w: c.CopyPage(
            id=w.id(), source=2, source_offset=0, target=2, target_offset=0, num_slots=1),
        "invalid_argument"),
    "export without a name": (
        lambda w: c.ExportPages(id=w.id(), pages=[2], name=""), "invalid_argument"),
    "a text of tokens that the model does not have": (
        lambda w: c.ExportPages(id=w.id(), pages=[2], name="x", tokens=[-1]), "invalid_argument"),
    "a text that is no list": (
        lambda w: c.ExportPages(id=w.id(), pages=[2], name="x", tokens=[None]),
        "invalid_argument"),
    "import of nothing": (
        lambda w: c.ImportPages(id=w.id(), pages=[60], name="none"), "unknown_handle"),
    "release of nothing": (lambda w: c.ReleaseExport(id=w.id(), name="none"), "unknown_handle"),
    "too few ids for a prefix": (
        lambda w: c.ImportPrefix(id=w.id(), tokens=[1] * 9, pages=[60]), "invalid_argument"),
    "after a command never issued": (
        lambda w: w.alloc([61], after=(12345,)), "unknown_handle"),
    "a forward that cannot be split": (
        lambda w: w.forward([], range(20, 160), []), "never_fits"),
}  # fmt: skip


def prepared() -> World:
    """Program 1 holds pages 0, 1 (empty), 2 (three slots) and embeds 0 (written), 1 (not)."""
    world = World(num_blocks=16, max_batch_tokens=128)
    world.program(1)
    world.program(2)
    world.do(1, world.alloc([0, 1, 2, *range(100, 120)]), world.alloc_embeds([0, 1]))
    world.do(1, world.embed([0], [5]), world.decode([2], [1, 2, 3], 0, context=[]))
    world.do(1, world.alloc_embeds(range(20, 160)))
    world.do(1, world.embed(range(20, 160), range(140)))
    world.do(2, world.alloc([70]))
    return world


def reset(world: World) -> None:
    world.harness.call(ProgramId(1), ResetQueue(QueueId(1)))


@pytest.mark.parametrize("name", BAD)
def test_bad_commands_are_answered_and_harm_nobody(name: str) -> None:
    make, code = BAD[name]
    world = prepared()
    other = world.issue(2, world.decode([70], [1, 2], 2))[0]
    before = world.controller.processes()[0]
    (bad,) = world.do(1, make(world))
    assert bad.error is not None, bad
    assert bad.error.code == code, bad.error
    assert bad.error.message
    (behind,) = world.do(1, world.decode([0], [1], 1, context=[]))
    assert behind.error is not None
    assert behind.error.code == "queue_poisoned"
    assert behind.error.details["failed"] == bad.command.id
    assert other.tokens == alone([1, 2], 2)
    after = world.controller.processes()[0]
    assert (after.num_pages, after.num_device_blocks) == (
        before.num_pages,
        before.num_device_blocks,
    )
    assert after.num_pending_commands == 0


def test_only_synchronize_is_answered_on_a_poisoned_queue_until_its_reset() -> None:
    world = prepared()
    (bad,) = world.do(1, world.dealloc([99]))
    sync, freed = world.do(1, c.Synchronize(id=world.id()), world.dealloc([0]))
    assert (bad.status, sync.status, freed.status) == ("failed", "done", "failed")
    assert {p for p in (0, 1) if p in world.controller._table.get(ProgramId(1)).pages} == {0, 1}
    reset(world)
    assert 0 not in world.controller._table.get(ProgramId(1)).pages, "freed by the reset"
    (again,) = world.do(1, world.decode([1], [1, 2], 2, context=[]))
    assert again.tokens == alone([1, 2], 2)


def test_what_follows_from_a_failure_names_the_failure() -> None:
    """Not the pages that are unknown because of it."""
    world = prepared()
    bad, decode, freed = world.do(
        1, world.alloc([50, 50]), world.decode([50], [1], 1, context=[]), world.dealloc([50])
    )
    for behind in (decode, freed):
        assert behind.error is not None
        assert behind.error.code == "queue_poisoned"
        assert behind.error.details["failed"] == bad.command.id
    reset(world)
    assert world.controller.processes()[0].num_pending_commands == 0


def test_a_queue_goes_on_behind_commands_that_a_failure_took_with_it() -> None:
    """They waited in the queue when the one before them failed in the plan of a message."""
    world = prepared()
    unwritten, *behind = world.do(
        1,
        world.forward([], [1], [0]),
        world.decode([2], [4], 1, position=3),
        world.alloc([60]),
    )
    assert unwritten.error is not None
    assert unwritten.error.code == "invalid_argument"
    assert [o.error and o.error.code for o in behind] == ["queue_poisoned"] * 2
    (sync,) = world.do(1, c.Synchronize(id=world.id()))
    assert sync.status == "done"
    queue = world.controller._table.get(ProgramId(1)).queues[QueueId(1)]
    assert not queue.entries


def test_a_program_that_failed_before_is_shown_as_running_when_it_runs() -> None:
    world = prepared()
    world.do(1, world.forward([], [1], [0]))
    reset(world)
    (decode,) = world.issue(1, world.decode([0], [1, 2], 2, context=[]))
    assert world.controller.processes()[0].state == "running"
    world.run()
    assert decode.tokens == alone([1, 2], 2)
    assert world.controller.processes()[0].state == "idle"


def test_what_a_quota_just_allows_is_done() -> None:
    world = prepared()
    (widest,) = world.do(1, c.GetNextDist(id=world.id(), embeds=[0], top_k=256))
    assert widest.status == "done"


def test_what_comes_before_a_bad_command_is_done() -> None:
    world = prepared()
    good, bad, late, sync = world.do(
        1,
        world.decode([0, 1], [1, 2], 3),
        world.dealloc([99]),
        world.dealloc([1]),
        c.Synchronize(id=world.id()),
    )
    assert good.tokens == alone([1, 2], 3)
    assert [o.status for o in (bad, late, sync)] == ["failed", "failed", "done"]


def test_a_page_freed_twice_is_refused_and_freed_once() -> None:
    world = prepared()
    first, second = world.do(1, world.dealloc([0]), world.dealloc([0]))
    assert (first.status, second.status) == ("done", "failed")
    assert second.error.code == "unknown_handle"


def test_commands_for_an_unknown_queue_or_engine_are_answered() -> None:
    world = World()
    world.program()
    for queue, make_queue in ((9, False), (8, True)):
        if make_queue:
            world.queue(1, queue, model="elsewhere")
        (outcome,) = world.do(1, world.alloc([1]), queue=queue)
        assert outcome.error is not None
        assert outcome.error.code == "unknown_handle"
    actions = world.controller.handle(
        Called(
            time_s=world.harness.now_s,
            program=ProgramId(77),
            call=Issue(QueueId(1), [world.alloc([1])]),
        )
    )
    assert [action.error.code for action in actions] == ["unknown_handle"]


def test_a_command_id_is_used_once() -> None:
    world = World()
    world.program()
    command = world.alloc([1])
    world.do(1, command)
    event = Called(time_s=0.0, program=ProgramId(1), call=Issue(QueueId(1), [command]))
    (action,) = world.controller.handle(event)
    assert action.error.code == "invalid_argument"


@pytest.mark.parametrize(
    ("quotas", "make", "code", "is_retriable"),
    [
        (Quotas(max_pages=3), lambda w: w.alloc(range(4)), "never_within_quota", False),
        (Quotas(max_embeds=3), lambda w: w.alloc_embeds(range(4)), "never_within_quota", False),
        (Quotas(max_pending_commands=0), lambda w: w.alloc(range(1)), "quota_exceeded", True),
    ],
)
def test_quotas_refuse_that_command_only(
    quotas: Quotas, make: Make, code: str, is_retriable: bool
) -> None:
    world = World()
    world.program(1, quotas=quotas)
    world.program(2)
    (outcome,) = world.do(1, make(world))
    assert outcome.error is not None
    assert (outcome.error.code, outcome.error.retriable) == (code, is_retriable)
    assert world.do(2, world.alloc(range(9)))[0].status == "done"


def test_what_would_fit_once_others_are_gone_may_be_tried_again() -> None:
    world = World()
    world.program(1, quotas=Quotas(max_pages=3))
    world.do(1, world.alloc([1, 2]))
    (outcome,) = world.do(1, world.alloc([3, 4]))
    assert outcome.error is not None
    assert (outcome.error.code, outcome.error.retriable) == ("quota_exceeded", True)


def test_pages_are_bounded_without_a_quota(monkeypatch: pytest.MonkeyPatch) -> None:
    world = prepared()
    monkeypatch.setattr("quire.control.commands.handle_checks.MAX_PAGES", 200)
    (refused,) = world.do(1, world.alloc(range(1000, 1200)))
    assert refused.error is not None
    assert refused.error.code == "quota_exceeded"
    reset(world)
    assert world.do(1, world.alloc(range(1000, 1020)))[0].status == "done"


def test_the_quota_of_generated_tokens_is_exact() -> None:
    world = World()
    world.program(1, quotas=Quotas(max_generated_tokens=5))
    decode = world.do(1, world.alloc(range(8)), world.decode(range(8), [1, 2, 3], 20))[1]
    assert decode.error is not None
    assert (decode.error.code, decode.error.retriable) == ("never_within_quota", False)
    assert decode.tokens == alone([1, 2, 3], 20)[:5]


def test_a_failing_row_ends_its_command_and_its_writes_are_undone() -> None:
    world = World()
    world.program(1)
    world.program(2)
    world.do(1, world.alloc([0]), world.alloc_embeds([0]), world.embed([0], [5]))
    step = world.engine._next_message
    world.engine.fail_row(step, "forward", 0, InvalidArgument("injected"))
    (bad,) = world.do(1, world.forward([], [0], [0], [0]))
    assert bad.error is not None
    assert bad.error.code == "invalid_argument"
    reset(world)
    (again,) = world.do(1, world.decode([0], [1, 2], 2, context=[]))
    assert again.tokens == alone([1, 2], 2), "the page is empty again"
    step = world.engine._next_message
    world.engine.fail_row(step, "forward", 0, InvalidArgument("injected"))
    bad = world.do(2, world.alloc([0, 1]), world.decode([0, 1], [1, 2, 3, 4, 5], 3))[1]
    assert bad.error is not None
    assert bad.error.message == "injected", "the engine's reason"
    assert world.figures.num_open_sequences == 0


def test_a_decode_that_fails_on_its_way_says_why() -> None:
    world = World()
    world.program(1)
    world.do(1, world.alloc(range(4)))
    world.engine.fail_row(1, "advance", 0, InvalidArgument("injected"))
    (bad,) = world.do(1, world.decode(range(4), [1, 2, 3], 9))
    assert bad.error is not None
    assert bad.error.message == "injected"
    assert bad.tokens == alone([1, 2, 3], 9)[: len(bad.tokens)]
    assert bad.tokens


def test_a_grammar_that_does_not_compile_fails_its_decode_alone() -> None:
    world = World()
    world.program(1)
    world.program(2)
    good = world.issue(2, world.alloc([0, 1]), world.decode([0, 1], [1, 2], 3))[1]
    bad = world.do(
        1,
        world.alloc([0, 1]),
        world.decode([0, 1], [1, 2], 3, grammar=GrammarSpec("regex", "([")),
    )[1]
    assert bad.status == "failed"
    assert good.tokens == alone([1, 2], 3)
