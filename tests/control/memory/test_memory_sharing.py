"""Exports, imports, copies, masks: snapshots that nobody's writes can reach."""

from __future__ import annotations

import pytest
from control_world import ENGINE, World, alone

from quire.control.memory.exports import Export, ExportTable, PageSnapshot
from quire.core import commands as c
from quire.core.calls import CloseQueue
from quire.core.decoding import SamplerSpec, StopSpec
from quire.core.events import ENGINE_WAS_LOST, Called, ProgramEnded, Tick
from quire.core.ids import EngineId, ProgramId, QueueId, TenantId
from quire.core.quotas import Quotas
from quire.testing import FakeEngine
from quire.testing.fake_engine import fake_pool

PROMPT = [3, 1, 4, 1, 5, 9]


def export(world: World, pages: list[int], name: str = "x", **fields: object) -> c.ExportPages:
    return c.ExportPages(id=world.id(), pages=pages, name=name, **fields)


def load(world: World, pages: list[int], name: str = "x") -> c.ImportPages:
    return c.ImportPages(id=world.id(), pages=pages, name=name)


def follow(world: World, context: list[int], output: list[int], token: int, n: int) -> c.Decode:
    return c.Decode(
        id=world.id(),
        context=context,
        output=output,
        tokens=[token],
        position=len(PROMPT),
        sampler=SamplerSpec(),
        stop=StopSpec(max_tokens=n),
    )


def exported(**pool: int) -> World:
    world = World(**pool)
    world.program(1)
    world.program(2)
    world.do(
        1,
        world.alloc(range(4)),
        world.decode(range(4), PROMPT, 0),
        export(world, [0, 1]),
    )
    return world


def test_owner_and_importers_go_their_own_ways_behind_a_shared_half_filled_page() -> None:
    world = exported()
    (imported,) = world.do(2, load(world, [7, 8, 9]))
    assert [page.fill for page in imported.reply.pages] == [4, 2]
    assert imported.reply.num_tokens == 6
    assert imported.reply.pages[1].positions == [4, 5]
    assert imported.reply.pages[1].visible == [True, True, False, False]
    assert world.pool.num_held == 2, "nothing is copied before somebody writes"
    mine = world.issue(1, follow(world, [0, 1], [1, 2, 3], 70, 6))[0]
    theirs = world.issue(2, world.alloc([10, 11]), follow(world, [7, 8], [8, 10, 11], 80, 6))[1]
    world.run()
    assert mine.tokens == alone([*PROMPT, 70], 6)
    assert theirs.tokens == alone([*PROMPT, 80], 6)
    (again,) = world.do(2, load(world, [20, 21]))
    assert [page.fill for page in again.reply.pages] == [4, 2], "the snapshot is as it was"


def test_pages_that_another_program_imports_are_known_to_be_shared() -> None:
    """So they keep their turn when the program that wrote them has ended, as cached pages do that
    another one has mapped."""
    world = exported()
    find = c.ImportPrefix(id=world.id(), tokens=PROMPT, pages=[20, 21])
    world.do(2, load(world, [7, 8]), find)
    programs = {program: world.controller._table.get(ProgramId(program)) for program in (1, 2)}
    contents = {}
    for program, found in programs.items():
        assert found is not None
        contents[program] = {id: page.content for id, page in found.pages.items()}
    assert contents[2][7] is contents[2][20] is contents[1][0]
    assert [contents[2][page].is_shared for page in (7, 8)] == [True, False]


def test_exports_are_private_to_a_tenant_and_their_names_unique() -> None:
    world = exported()
    world.program(3, tenant="other")
    (stranger,) = world.do(3, load(world, [1, 2]))
    assert stranger.error is not None
    assert stranger.error.code == "unknown_handle"
    (twice,) = world.do(1, export(world, [0]))
    assert twice.error is not None
    assert twice.error.code == "invalid_argument"
    (theft,) = world.do(2, c.ReleaseExport(id=world.id(), name="x"))
    assert theft.error is not None
    assert theft.error.code == "forbidden"


def test_an_export_keeps_the_text_that_was_given_with_it() -> None:
    world = exported()
    text = [*PROMPT, 70]
    world.do(1, export(world, [0, 1], "text", tokens=text))
    (told,) = world.do(2, load(world, [7, 8, 9], "text"))
    assert (told.reply.tokens, told.reply.num_tokens) == (text, 6)
    (silent,) = world.do(2, load(world, [10, 11], "x"))
    assert silent.reply.tokens is None


def test_the_text_of_an_export_is_bounded_by_its_pages() -> None:
    world = exported()
    most = [1] * 9
    assert world.do(1, export(world, [0, 1], "most", tokens=most))[0].error is None
    (over,) = world.do(1, export(world, [0, 1], "over", tokens=[*most, 1]))
    assert over.error is not None
    assert "10 tokens for an export of 2 pages: give at most 9" in over.error.message


def test_too_few_ids_say_how_many() -> None:
    world = exported()
    (short,) = world.do(2, load(world, [7]))
    assert short.error is not None
    assert short.error.details["num_pages"] == 2


def test_an_export_ends_by_release_by_time_and_with_its_owner() -> None:
    world = exported()
    world.do(1, c.ReleaseExport(id=world.id(), name="x"), world.dealloc(range(4)))
    assert world.pool.num_held == 0
    world.program(3)
    world.do(
        3,
        world.alloc([0, 1]),
        world.decode([0, 1], PROMPT, 0),
        export(world, [0, 1], ttl_s=10.0),
        export(world, [0], name="kept", ttl_s=None),
        world.dealloc([0, 1]),
    )
    assert world.pool.num_held == 2
    start_s = world.harness.now_s
    world.harness.clock.advance(6.0)
    world.do(2, load(world, [7, 8]), world.dealloc([7, 8]))
    world.harness.clock.advance(6.0)
    world.harness.post(Tick(time_s=world.harness.now_s))
    assert world.controller.statistics().num_exports == 2, "an import starts the time again"
    world.harness.fire_timer()
    assert world.harness.now_s == pytest.approx(start_s + 16.0)
    assert world.controller.statistics().num_exports == 1
    ended(world, 3)
    assert world.controller.statistics().num_exports == 0
    assert world.pool.num_held == 0


def ended(world: World, program: int) -> None:
    world.harness.post(ProgramEnded(time_s=world.harness.now_s, program=ProgramId(program)))


def test_an_export_with_a_time_to_live_is_left_to_the_tenant() -> None:
    world = exported()
    ended(world, 1)
    assert world.controller.statistics().num_exports == 1
    (imported,) = world.do(2, load(world, [7, 8]))
    assert imported.reply.num_tokens == len(PROMPT)
    theirs = world.do(2, world.alloc([9]), follow(world, [7, 8], [8, 9], 80, 3))[1]
    assert theirs.tokens == alone([*PROMPT, 80], 3)
    world.program(3, tenant="other")
    (foreign,) = world.do(3, c.ReleaseExport(id=world.id(), name="x"))
    assert foreign.error is not None
    assert foreign.error.code == "unknown_handle"
    (released,) = world.do(2, c.ReleaseExport(id=world.id(), name="x"))
    assert released.status == "done", "it has no owner, so whoever may use it may release it"
    world.harness.post(Called(time_s=0, program=ProgramId(2), call=CloseQueue(QueueId(1))))
    assert world.pool.num_held == 0


def test_what_was_left_goes_when_memory_is_needed() -> None:
    world = exported(num_blocks=4, num_host_blocks=0)
    opaque = world.forward([], [1], [2], mask=[[True]])
    world.do(1, world.alloc_embeds([1]), world.embed([1], [9]), opaque)
    world.do(1, export(world, [2], name="opaque"))
    ended(world, 1)
    assert world.pool.num_held == 3
    full = world.do(2, world.alloc(range(20, 24)), world.decode(range(20, 24), [7] * 13, 3))[1]
    assert full.tokens == alone([7] * 13, 3), "all four blocks are needed"
    world.do(2, world.dealloc(range(20, 24)))
    (gone,) = world.do(2, load(world, [30], name="opaque"))
    assert gone.error is not None
    assert gone.error.code == "unknown_handle"
    world.program(3)
    theirs = world.do(
        3, load(world, [7, 8]), world.alloc([9]), follow(world, [7, 8], [8, 9], 80, 3)
    )[2]
    assert theirs.tokens == alone([*PROMPT, 80], 3), "its tokens are known: computed again"


def test_exports_that_are_left_are_taken_one_by_one() -> None:
    """There may be thousands, each message may have several claims, and a claim needs few."""
    table = ExportTable()
    there = EngineId("there")
    for number in range(6):
        owner, tenant = ProgramId(number), TenantId(f"t{number % 2}")
        engine = there if number == 3 else ENGINE
        page = PageSnapshot(None, 0, (), 0)
        made = Export(tenant, str(number), owner, engine, (page,) * (number + 1), 1e9, 1e9)
        table.add(made)
        table.leave(made)
    assert next(table.left(ENGINE)).name == "0", "an iterator, which is not exhausted for one"
    found = []
    for export in table.left(ENGINE):
        table.remove(export)
        found.append(export.name)
    assert found == ["0", "2", "1", "5", "4"], "by the pages of what remains: 9, 8, 8, 6, 5"
    assert [export.name for export in table.left(there)] == ["3"]


def test_so_many_exports_are_left_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quire.control.memory.exports.MAX_LEFT", 1)
    world = exported()
    world.program(3)
    world.do(3, world.alloc([0]), world.decode([0], [5, 6], 0), export(world, [0], name="y"))
    ended(world, 1)
    ended(world, 3)
    assert world.controller.statistics().num_exports == 1
    (imported,) = world.do(2, load(world, [7], name="y"))
    assert imported.status == "done", "the one that was left last"


def test_nobodys_exports_go_because_another_tenant_leaves_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("quire.control.memory.exports.MAX_LEFT", 2)
    table = ExportTable()
    page = PageSnapshot(None, 0, (), 0)

    def leave(tenant: str, name: str, num_pages: int) -> None:
        owner, pages = ProgramId(1), (page,) * num_pages
        made = Export(TenantId(tenant), name, owner, ENGINE, pages, 1e9, 1e9)
        table.add(made)
        table.leave(made)
        for gone in table.surplus(made.tenant):
            table.remove(gone)

    leave("quiet", "mine", 2)
    for number in range(5):
        leave("flood", str(number), 3)
    assert [export.name for export in table.exports()] == ["mine", "3", "4"]
    # memory is needed: the flood's two come before the quiet one's, however long that was unused
    assert [export.name for export in table.left(ENGINE)] == ["3", "4", "mine"]
    leave("quiet", "large", 5)
    assert [export.name for export in table.left(ENGINE)] == ["mine", "3", "large", "4"]
    table.touch(table.get(TenantId("quiet"), "mine"), 1.0)
    assert [export.name for export in table.left(ENGINE)] == ["large", "3", "4", "mine"]
    for export in list(table.exports()):
        table.remove(export)
    assert list(table.left(ENGINE)) == []


def test_ends_that_are_put_off_or_never_come_are_not_piled_up() -> None:
    table = ExportTable()

    def add(name: str, ttl_s: float) -> Export:
        made = Export(TenantId("t"), name, ProgramId(1), ENGINE, (), ttl_s, ttl_s)
        table.add(made)
        return made

    used, unused = add("used", 10.0), add("unused", 10.0)
    for now_s in range(1, 9):
        table.touch(used, float(now_s))
    for _ in range(1000):
        table.remove(add("released", 1e9))
    assert len(table._expiries) < 200
    assert table.next_expiry_s() == 10.0
    for gone, at_s in ((unused, 10.0), (used, 18.0)):
        assert not list(table.expired(at_s - 0.1))
        for export in table.expired(at_s):
            assert export is gone
            table.remove(export)
    assert len(table) == 0
    assert table.next_expiry_s() is None


def test_the_quota_of_exported_pages() -> None:
    world = World()
    world.program(1, quotas=Quotas(max_exported_pages=1))
    good, bad = world.do(1, world.alloc([0, 1]), export(world, [0]), export(world, [1], name="y"))[
        1:
    ]
    assert good.status == "done"
    assert bad.error is not None
    assert bad.error.code == "quota_exceeded"


def test_an_import_can_be_used_before_its_reply_is_seen() -> None:
    world = exported()
    decode = world.do(
        2, load(world, [7, 8, 9]), world.alloc([10]), follow(world, [7, 8], [8, 10], 80, 3)
    )[2]
    assert decode.tokens == alone([*PROMPT, 80], 3)
    unused = world.do(2, world.decode([9], [1], 1))[0]
    assert unused.error is not None
    assert unused.error.code == "unknown_handle", "offered and not needed: it does not exist"


def test_copies_keep_k_v_and_position_and_are_the_copier_s_own() -> None:
    world = exported()
    world.do(
        1,
        world.alloc([30, 31]),
        c.CopyPage(
            id=world.id(), source=1, source_offset=0, target=30, target_offset=0, num_slots=2
        ),
    )
    fork = world.do(1, follow(world, [0, 30], [30, 31], 99, 4))[0]
    assert fork.tokens == alone([*PROMPT, 99], 4)
    original = world.do(1, follow(world, [0, 1], [1, 2], 70, 4))[0]
    assert original.tokens == alone([*PROMPT, 70], 4)


@pytest.mark.parametrize(
    ("start", "num", "before", "is_known"),
    [(0, 4, 0, True), (0, 2, 0, True), (1, 3, 0, False), (0, 2, 4, False)],
    ids=["whole", "beginning", "not from the first on", "over the beginning of others"],
)
def test_a_copy_is_computed_again_only_if_it_is_the_beginning_of_a_prefix(
    start: int, num: int, before: int, is_known: bool
) -> None:
    """``before``: slots of the target that are written already."""
    world = World(page_size=4)
    world.program()
    world.do(1, world.alloc(range(2)), world.decode([0], [5, 6, 7, 8], stop=StopSpec(max_tokens=0)))
    if before:
        other = world.decode([1], [9] * before, stop=StopSpec(max_tokens=0))
        world.do(1, other)
    copy = c.CopyPage(
        id=world.id(), source=0, source_offset=start, target=1, target_offset=0, num_slots=num
    )
    assert world.do(1, copy)[0].status == "done"
    world.harness.lose_engine(ENGINE)
    world.harness.start_engine(ENGINE, FakeEngine(fake_pool(page_size=4)))
    read = world.decode([2], [3], 2, position=8, context=[1, 2])
    outcome = world.do(1, world.alloc([2]), read)[1]
    if is_known:
        assert outcome.status == "done"
    else:
        assert outcome.error is not None
        assert outcome.error.code == "page_lost"


def test_a_mask_is_the_holder_s_and_truncation_brings_the_cursor_back() -> None:
    world = exported()
    world.do(2, load(world, [7, 8]))
    hidden = [False, True, True, True]
    world.do(2, c.MaskPage(id=world.id(), page=7, visible=hidden))
    masked = world.do(2, world.alloc([10]), follow(world, [7, 8], [10], 80, 3))[1]
    assert masked.tokens != alone([*PROMPT, 80], 3)
    shown = world.do(1, follow(world, [0, 1], [2], 80, 3))[0]
    assert shown.tokens == alone([*PROMPT, 80], 3)
    world.do(
        1,
        c.TruncatePage(id=world.id(), page=1, fill=1),
        c.TruncatePage(id=world.id(), page=2, fill=0),
    )
    rewritten = world.do(
        1,
        c.Decode(
            id=world.id(),
            context=[0, 1],
            output=[1, 2],
            tokens=[60],
            position=5,
            sampler=SamplerSpec(),
            stop=StopSpec(max_tokens=3),
        ),
    )[0]
    assert rewritten.tokens == alone([*PROMPT[:5], 60], 3)
    (again,) = world.do(2, load(world, [20, 21]))
    assert [page.fill for page in again.reply.pages] == [4, 2]


def test_exports_are_listed_to_their_tenant_alone() -> None:
    world = exported()
    world.program(3, tenant="other")
    (listed,) = world.do(2, c.ListExports(id=world.id()))
    (own,) = world.do(1, c.ListExports(id=world.id(), prefix="x"))
    (none,) = world.do(1, c.ListExports(id=world.id(), prefix="y"))
    (foreign,) = world.do(3, c.ListExports(id=world.id()))
    (entry,) = listed.reply.exports
    assert (entry.name, entry.num_pages, entry.own) == ("x", 2, False)
    (imported,) = world.do(2, load(world, [7, 8]))
    assert entry.num_tokens == imported.reply.num_tokens
    assert 0 < entry.expires_in_s <= 600.0
    assert [found.own for found in own.reply.exports] == [True]
    assert none.reply.exports == foreign.reply.exports == []
    world.do(1, c.ReleaseExport(id=world.id(), name="x"))
    (gone,) = world.do(1, c.ListExports(id=world.id()))
    assert gone.reply.exports == []


@pytest.mark.parametrize("is_text", [True, False])
def test_an_export_that_nobody_can_compute_again_goes_with_its_engine(is_text: bool) -> None:
    """Its name is free for whoever makes the pages anew; one of plain text stays."""
    world = exported()
    if not is_text:
        world.do(1, world.alloc([30]), c.MaskPage(id=world.id(), page=0, visible=[False] * 4))
        read = world.decode([30], [9, 9, 9, 9], stop=StopSpec(max_tokens=0), context=[0, 1])
        world.do(1, read, export(world, [30], "opaque"))
    name = "x" if is_text else "opaque"
    world.harness.lose_engine(ENGINE)
    world.harness.start_engine(ENGINE, FakeEngine(fake_pool(page_size=4)))
    outcome = world.do(2, load(world, [40, 41], name))[0]
    if is_text:
        assert outcome.status == "done"
        return
    assert outcome.error is not None
    assert outcome.error.code == "unknown_handle"
    assert "lost with their engine" in outcome.error.message
    world.do(1, world.alloc([31]), world.decode([31], [9], stop=StopSpec(max_tokens=0)))
    assert world.do(1, export(world, [31], "opaque"))[0].status == "done"


@pytest.mark.parametrize("reason", ["finished", ENGINE_WAS_LOST])
def test_of_a_program_that_begins_again_no_export_is_left(reason: str) -> None:
    world = exported()
    world.do(1, export(world, [0], "for a time", ttl_s=600.0))
    ended = ProgramEnded(time_s=world.harness.now_s, program=ProgramId(1), reason=reason)
    world.harness.post(ended)
    outcome = world.do(2, load(world, [40], "for a time"))[0]
    assert outcome.status == ("done" if reason == "finished" else "failed")
