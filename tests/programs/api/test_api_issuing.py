"""Issuing commands: batching, replies, failures that nobody awaits, queues, handles."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest
from programs_port import Ports, ScriptedPort, engine_info

from quire.core.calls import Cancel, CloseQueue, CreateQueue, Issue, SetQueuePriority
from quire.core.commands import (
    AllocPages,
    Decode,
    Dists,
    EmbedText,
    Forward,
    GetNextDist,
    Imported,
    ImportedPage,
    ImportPages,
    Sample,
    Sampled,
    Synchronize,
)
from quire.core.decoding import DecodeChunk, Dist, StopSpec
from quire.core.errors import (
    EngineLost,
    ErrorRecord,
    InvalidArgument,
    ProgramCancelled,
    ProgramTerminated,
    QueuePoisoned,
    TraitMissing,
    UnknownHandle,
)
from quire.programs.api import Api, connect_api


@pytest.fixture
async def api(ports: Ports) -> AsyncIterator[Api]:
    api = connect_api(ports.connect)
    yield api
    api.close()


async def test_commands_of_one_turn_leave_together_and_in_order(api: Api, ports: Ports) -> None:
    one, two = api.create_queue(), api.create_queue()
    for queue in (one, one, two, two, one):
        api.alloc_kvpage(queue, 1)
    assert ports.port.issued == []
    await asyncio.sleep(0)
    assert [(issue.queue, len(issue.commands)) for issue in ports.port.issued] == [
        (one.id, 2),
        (two.id, 2),
        (one.id, 1),
    ]


async def test_awaiting_sends_at_once(api: Api, ports: Ports) -> None:
    api.alloc_kvpage(1)
    waiting = asyncio.ensure_future(api.synchronize().ended())
    await asyncio.sleep(0)
    assert [type(command) for command in ports.port.commands] == [AllocPages, Synchronize]
    await waiting


async def test_a_dependency_is_sent_before_the_command_that_names_it(
    api: Api, ports: Ports
) -> None:
    one, two = api.create_queue(), api.create_queue()
    api.alloc_kvpage(two, 1)
    first = api.synchronize(one)
    api.alloc_kvpage(two.after(first), 1)
    await asyncio.sleep(0)
    order = [command.id for command in ports.port.commands]
    dependent = ports.port.commands[-1]
    assert dependent.after == (first.command,)
    assert order.index(first.command) < order.index(dependent.id)
    assert order == sorted(order)


async def test_dependencies_hold_for_one_command_and_other_queues_only(
    api: Api, ports: Ports
) -> None:
    queue, other = api.create_queue(), api.create_queue()
    reply = api.synchronize(other)
    assert queue.after(reply).dependencies == (reply.command,)
    assert queue.dependencies == ()
    assert other.after(reply).dependencies == ()


async def test_a_failure_that_nobody_awaited_surfaces_at_the_next_await(
    api: Api, ports: Ports
) -> None:
    refused = InvalidArgument("no such luck", page=3).record()
    ports.port.answer = lambda c: refused if isinstance(c, AllocPages) else None
    api.alloc_kvpage(2)
    emb = api.alloc_emb(1)
    reply = api.embed_txt(5, 0, emb)
    with pytest.raises(QueuePoisoned) as caught:
        await reply
    assert isinstance(caught.value.__cause__, InvalidArgument)
    assert caught.value.__cause__.details == {"page": 3}
    assert api.issuer.unseen_failures() == ()


async def test_synchronize_tells_an_unseen_failure_once(api: Api, ports: Ports) -> None:
    def answer(command: object) -> object:
        return InvalidArgument("bad").record() if isinstance(command, AllocPages) else None

    ports.port.answer = answer
    api.alloc_kvpage(1)
    sync = api.synchronize()
    ports.port.poisoned.clear()
    await asyncio.sleep(0)
    ports.port.poisoned.clear()
    with pytest.raises((InvalidArgument, QueuePoisoned)):
        await sync
    assert api.issuer.unseen_failures() == ()


async def test_unseen_failures_are_kept_and_a_reset_clears_them(api: Api, ports: Ports) -> None:
    queue = api.create_queue()
    ports.port.answer = lambda c: InvalidArgument("bad").record()
    api.alloc_kvpage(queue, 1)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert [error.message for error in api.issuer.unseen_failures()] == ["bad"]
    api.reset_queue(queue)
    assert api.issuer.unseen_failures() == ()


async def test_a_cancelled_command_is_no_failure_of_the_queue(api: Api, ports: Ports) -> None:
    ports.port.answer = lambda c: ScriptedPort.HOLD
    emb = api.alloc_emb(1)
    reply = api.embed_txt(5, 0, emb)
    reply.cancel()
    with pytest.raises(ProgramCancelled):
        await reply
    reply.cancel()
    assert ports.port.called.count(Cancel(reply.command)) == 1
    assert api.issuer.unseen_failures() == ()


async def test_cancelling_a_wait_leaves_the_command(api: Api, ports: Ports) -> None:
    ports.port.answer = lambda c: ScriptedPort.HOLD
    emb = api.alloc_emb(1)
    reply = api.get_next_dist(emb)
    waits = [asyncio.ensure_future(reply.ended()) for _ in range(2)]
    await asyncio.sleep(0)
    waits[0].cancel()
    await asyncio.gather(*waits[:1], return_exceptions=True)
    ports.port.reply(reply.command, Dists([Dist([7], [1.0])]))
    await waits[1]
    assert (await reply).max_index() == 7
    assert not any(isinstance(call, Cancel) for call in ports.port.called)


async def test_replies_may_be_awaited_many_times_and_gathered(api: Api, ports: Ports) -> None:
    ports.port.answer = lambda c: (
        Dists([Dist([len(c.embeds)], [1.0])] * len(c.embeds))
        if isinstance(c, GetNextDist)
        else None
    )
    emb = api.alloc_emb(2)
    reply = api.get_next_dist(emb[0])
    assert (await reply) == (await reply)
    first, many = await asyncio.gather(api.get_next_dist(emb[:1]), api.get_next_dists(emb))
    assert first.token_ids == [1]
    assert len(many) == 2
    with pytest.raises(InvalidArgument, match="2 embeds"):
        api.get_next_dist(emb)


async def test_foreign_and_freed_handles_raise_at_once(api: Api, ports: Ports) -> None:
    other = connect_api(ports.connect)
    foreign = other.alloc_kvpage(1)
    page, emb = api.alloc_kvpage(1), api.alloc_emb(1)
    with pytest.raises(UnknownHandle, match="another program"):
        api.dealloc_kvpage(foreign)
    with pytest.raises(UnknownHandle, match="another program"):
        api.alloc_kvpage(other.create_queue(), 1)
    api.dealloc_kvpage(page)
    with pytest.raises(UnknownHandle, match="was freed"):
        api.dealloc_kvpage(page)
    with pytest.raises(InvalidArgument, match="expected a page"):
        api.dealloc_kvpage(emb)  # type: ignore[arg-type]
    twice = api.alloc_kvpage(1)
    with pytest.raises(InvalidArgument, match="twice"):
        api.dealloc_kvpage(twice + twice)
    assert not twice[0].freed
    other.close()


async def test_closing_a_queue_takes_its_handles_with_it(api: Api, ports: Ports) -> None:
    queue = api.create_queue()
    page = api.alloc_kvpage(queue, 1)[0]
    api.close_queue(queue)
    api.close_queue(queue)
    assert page.freed
    with pytest.raises(UnknownHandle, match="was freed with queue"):
        api.dealloc_kvpage(page)
    with pytest.raises(UnknownHandle, match="is closed"):
        api.synchronize(queue)
    about_queues = [type(call) for call in ports.port.called if not isinstance(call, Issue)]
    assert about_queues == [CreateQueue, CloseQueue, CreateQueue]


async def test_a_missing_trait_is_named(api: Api, ports: Ports) -> None:
    model = ports.port.model
    ports.port.model = type(model)(
        model.id, model.base, engine_info(traits=["Allocate"]), model.tokenizer
    )
    assert "Forward" not in api.available_traits()
    pages = api.alloc_kvpage(1)
    with pytest.raises(TraitMissing, match="Decode"):
        api.decode([], [1], pages, stop=StopSpec(1))


async def test_forward_as_in_the_listings(api: Api, ports: Ports) -> None:
    iemb, oemb, kv = api.alloc_emb(3), api.alloc_emb(1), api.alloc_kvpage(1)
    api.embed_txt([1, 2, 3], [0, 1, 2], iemb)
    api.forward([], iemb[:-1], kv)
    api.forward(kv, iemb[-1:], oemb)
    await api.synchronize()
    first, second = (c for c in ports.port.commands if isinstance(c, Forward))
    assert (first.output, first.outputs) == ([kv[0].id], [])
    assert (second.context, second.output, second.outputs) == ([kv[0].id], [], [oemb[0].id])
    assert kv[0].positions == (0, 1)
    assert oemb[0].position == 2


async def test_bad_forwards_are_refused_before_they_are_issued(api: Api, ports: Ports) -> None:
    iemb, kv = api.alloc_emb(6), api.alloc_kvpage(1)
    with pytest.raises(InvalidArgument, match="has not been written"):
        api.forward([], iemb, kv)
    api.embed_txt(list(range(6)), list(range(6)), iemb)
    with pytest.raises(InvalidArgument, match="6 tokens do not fit into 1 output pages with 4"):
        api.forward([], iemb, kv)
    assert kv[0].fill == 0
    with pytest.raises(InvalidArgument, match=r"mask is \[1, 2\], expected \[1, 5\]"):
        api.forward(kv, iemb[:1], [], [], mask=[[True, False]])
    with pytest.raises(InvalidArgument, match="0 inputs"):
        api.forward(kv, [], [])
    with pytest.raises(InvalidArgument, match="1 inputs to 2 outputs"):
        api.forward(kv, iemb[:1], [], api.alloc_emb(2))
    with pytest.raises(InvalidArgument, match="3 flags"):
        api.mask_kvpage(kv[0], [True] * 3)
    with pytest.raises(InvalidArgument, match="2 tokens at 1 positions"):
        api.embed_txt([1, 2], [0], iemb[:2])
    await api.synchronize()
    assert not [c for c in ports.port.commands if isinstance(c, Forward)]


@pytest.mark.parametrize("mask", [[[0, 1, 1, 0, 1]], np.array([[0, 1, 1, 0, 1]], bool)])
async def test_a_mask_may_be_numbers_or_an_array(api: Api, ports: Ports, mask: Any) -> None:
    """Guests and natives alike: what leaves are flags."""
    iemb, kv = api.alloc_emb(1), api.alloc_kvpage(1)
    api.embed_txt([1], [0], iemb)
    api.forward(kv, iemb, [], [], mask=mask)
    with pytest.raises(InvalidArgument, match=r"mask is \[1, 4\], expected \[1, 5\]"):
        api.forward(kv, iemb, [], [], mask=np.ones((1, 4), bool))
    await api.synchronize()
    (command,) = (c for c in ports.port.commands if isinstance(c, Forward))
    assert command.mask == [[False, True, True, False, True]]
    assert {type(flag) for flag in command.mask[0]} == {bool}


async def test_token_slots_are_embedded_before_the_host_sees_them(api: Api, ports: Ports) -> None:
    emb, slots = api.alloc_emb(1), api.alloc_token_slot(1)
    api.embed_txt(3, 0, emb)
    api.forward([], emb, [], emb)
    api.sample(emb, token_slots=slots)
    api.embed_txt(slots, [1], emb)
    with pytest.raises(InvalidArgument, match="1 ids and 1 token slots"):
        api.embed_txt([slots[0], 3], [1, 2], emb * 2)  # type: ignore[list-item]
    await api.synchronize()
    embeds = [c for c in ports.port.commands if isinstance(c, EmbedText)]
    assert embeds[0].token_slots is None
    assert embeds[1].token_slots == [slots[0].id]


async def test_copy_and_truncate_keep_track_of_positions(api: Api) -> None:
    emb, (src, dst) = api.alloc_emb(4), api.alloc_kvpage(2)
    api.embed_txt([1, 2, 3, 4], [10, 11, 12, 13], emb)
    api.forward([], emb, [src])
    api.copy_kvpage(src, dst, num_slots=2, src_offset=1)
    assert dst.positions == (11, 12)
    api.copy_kvpage(src, dst, num_slots=2, src_offset=2, dst_offset=1)
    assert dst.positions == (11, 12, 13)
    api.copy_kvpage(src, dst, num_slots=1)
    assert dst.positions == (10, 12, 13)
    api.truncate_kvpage(src, 3)
    assert src.fill == 3
    with pytest.raises(InvalidArgument, match="only become shorter"):
        api.truncate_kvpage(src, 4)
    with pytest.raises(InvalidArgument, match="leave no gap"):
        api.copy_kvpage(src, dst, num_slots=4)


async def test_a_page_shows_what_a_running_decode_has_written_so_far(
    api: Api, ports: Ports
) -> None:
    ports.port.answer = lambda c: ScriptedPort.HOLD if isinstance(c, Decode) else None
    kv = api.alloc_kvpage(2)
    stream = api.decode([], [1, 2, 3], kv, stop=StopSpec(9))
    stream.on_reply(DecodeChunk([5]), last=False)
    stream.on_reply(DecodeChunk([6, 7, 8]), last=False)
    assert (kv[0].positions, kv[0].fill) == ((0, 1, 2, 3), 4)
    assert (kv[1].positions, kv[1].fill) == ((4, 5), 2)
    stream.on_reply(DecodeChunk([9], finish_reason="stop"), last=True)
    assert kv[1].positions == (4, 5, 6)


async def test_decode_streams_chunks_and_notes_what_is_written(api: Api, ports: Ports) -> None:
    chunks = [
        DecodeChunk([5], num_cached_tokens=2),
        DecodeChunk([6, 7]),
        DecodeChunk([8], finish_reason="length"),
    ]
    ports.port.answer = lambda c: chunks if isinstance(c, Decode) else None
    kv = api.alloc_kvpage(2)
    stream = api.decode([], [1, 2, 3], kv, stop=StopSpec(4))
    assert kv[0].positions == (0, 1, 2)
    assert [chunk.token_ids async for chunk in stream] == [[5], [6, 7], [8]]
    whole = await stream
    assert (whole.token_ids, whole.finish_reason) == ([5, 6, 7, 8], "length")
    assert whole.num_cached_tokens == 2
    assert kv[0].positions == (0, 1, 2, 3)  # the last sampled token has not been run
    assert kv[1].positions == (4, 5)
    await api.decode(kv, [8], kv[1:], stop=StopSpec(1))
    decodes = [c for c in ports.port.commands if isinstance(c, Decode)]
    assert decodes[-1].position == 6


async def test_only_its_end_wakes_who_awaits_a_whole_decode(api: Api, ports: Ports) -> None:
    ports.port.answer = lambda c: ScriptedPort.HOLD if isinstance(c, Decode) else None
    stream = api.decode([], [5], api.alloc_kvpage(1), stop=StopSpec(2))
    whole = stream.__await__()
    waits_for = next(whole)
    reader = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0)
    first, last = DecodeChunk([7]), DecodeChunk([8], finish_reason="length")
    stream.on_reply(first, last=False)
    assert not waits_for.done()
    assert await reader == first
    stream.on_reply(last, last=True)
    assert waits_for.done()
    with pytest.raises(StopIteration) as end:
        next(whole)
    assert end.value.value.token_ids == [7, 8]
    assert stream.take_all() == [last]


async def test_a_page_behind_a_running_decode_is_not_guessed(api: Api, ports: Ports) -> None:
    ports.port.answer = lambda c: ScriptedPort.HOLD if isinstance(c, Decode) else None
    kv, emb = api.alloc_kvpage(1), api.alloc_emb(1)
    api.embed_txt(1, 9, emb)
    stream = api.decode([], [1], kv, stop=StopSpec(4))
    api.forward([], emb, kv)
    assert kv[0].fill is None
    with pytest.raises(InvalidArgument, match="pass position"):
        api.decode(kv, [1], [], stop=StopSpec(1))
    ports.port.reply(stream.command, DecodeChunk([5], finish_reason="stop"))
    await stream
    api.truncate_kvpage(kv[0], 0)
    assert kv[0].fill == 0


async def test_what_a_failed_decode_has_written_is_not_guessed(api: Api, ports: Ports) -> None:
    ports.port.answer = lambda c: ScriptedPort.HOLD if isinstance(c, Decode) else None
    kv = api.alloc_kvpage(1)
    stream = api.decode([], [1, 2], kv, stop=StopSpec(4))
    await asyncio.sleep(0)
    ports.port.reply(stream.command, DecodeChunk([5]), last=False)
    ports.port.fail(stream.command, ErrorRecord("engine_lost", "gone"))
    with pytest.raises(EngineLost, match="gone"):
        await stream
    assert kv[0].fill is None


async def test_a_priority_follows_what_was_issued_before(api: Api, ports: Ports) -> None:
    queue = api.create_queue()
    api.alloc_kvpage(queue, 1)
    api.set_queue_priority(queue, -3)
    *_, issued, changed = ports.port.called
    assert isinstance(issued, Issue)
    assert changed == SetQueuePriority(queue.id, -3)


async def test_leaving_a_decode_cancels_it(api: Api, ports: Ports) -> None:
    ports.port.answer = lambda c: ScriptedPort.HOLD if isinstance(c, Decode) else None
    kv = api.alloc_kvpage(1)
    async with api.decode([], [1], kv, stop=StopSpec(4)) as stream:
        await asyncio.sleep(0)
        ports.port.reply(stream.command, DecodeChunk([5]), last=False)
        async for _ in stream:
            break
    assert Cancel(stream.command) in ports.port.called
    with pytest.raises(ProgramCancelled):
        await stream


async def test_an_import_takes_the_ids_that_are_used(api: Api, ports: Ports) -> None:
    def answer(command: object) -> object:
        if isinstance(command, ImportPages):
            pages = [ImportedPage(command.pages[i], 2, [i, i + 1], [True] * 4) for i in (0, 1)]
            return Imported(pages, 4)
        return None

    ports.port.answer = answer
    pages = await api.import_kvpage("shared", max_pages=3)
    assert [page.positions for page in pages] == [(0, 1), (1, 2)]
    assert (await api.import_kvpage("shared"))[0].positions == (0, 1)


async def test_termination_ends_every_answer(api: Api, ports: Ports) -> None:
    ports.port.answer = lambda c: ScriptedPort.HOLD
    kv = api.alloc_kvpage(1)
    stream, sync = api.decode([], [1], kv, stop=StopSpec(4)), api.synchronize()
    await asyncio.sleep(0)
    ports.port.sink.on_terminated(ErrorRecord("program_terminated", "idle for too long"))
    for answer in (stream, sync):
        with pytest.raises(ProgramTerminated, match="idle"):
            await answer
    with pytest.raises(ProgramTerminated, match="idle"):
        api.alloc_kvpage(1)


async def test_closing_twice_closes_once_and_nothing_can_follow(ports: Ports) -> None:
    api = connect_api(ports.connect)
    api.alloc_kvpage(1)
    api.close("done")
    api.close("again")
    ports.port.sink.on_terminated(ErrorRecord("engine_lost", "too late"))
    assert ports.port.closed == "done"
    assert len(ports.port.commands) == 1
    with pytest.raises(ProgramTerminated, match="has ended"):
        api.alloc_kvpage(1)


async def test_text_that_is_not_unicode_is_refused(api: Api) -> None:
    assert api.detokenize(api.tokenize("Hällo")) == "Hällo"
    assert api.detokenize(65) == "A"
    assert api.get_vocabs()[65] == b"A"
    with pytest.raises(InvalidArgument, match="lone surrogate at index 1"):
        api.tokenize("a\ud800")


@pytest.mark.parametrize("sampler", [0.8, "greedy", None])
async def test_a_sampler_is_what_the_constructors_return(api: Api, sampler: Any) -> None:
    queue = api.create_queue()
    (embed,) = api.alloc_emb(queue, 1)
    with pytest.raises(InvalidArgument, match=r"give greedy\(\), or for example temperature"):
        api.sample(queue, embed, sampler, positions=[0])


async def test_a_token_is_sampled_after_each_embed_kept_or_not(api: Api, ports: Ports) -> None:
    ports.port.answer = lambda c: Sampled([7] * len(c.embeds)) if isinstance(c, Sample) else None
    queue = api.create_queue()
    embeds = api.alloc_emb(queue, 2)
    for embed, position in zip(embeds, (3, 4), strict=True):
        embed.position = position
    slots = api.alloc_token_slot(queue, 2)
    assert await api.sample(queue, embeds) == [7, 7]
    assert await api.sample(queue, embeds, positions=[8, 9], token_slots=slots) == [7, 7]
    plain, kept = (one for one in ports.port.commands if isinstance(one, Sample))
    assert (plain.positions, plain.token_slots, plain.history) == ([4, 5], None, None)
    assert (kept.positions, kept.token_slots) == ([8, 9], [slot.slot_id for slot in slots])
    for wrong in ({"positions": [8]}, {"token_slots": slots[:1]}):
        with pytest.raises(InvalidArgument, match="sample after 2 embeds"):
            api.sample(queue, embeds, **wrong)
