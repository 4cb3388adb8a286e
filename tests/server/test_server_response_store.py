"""What is stored is bounded by number, bytes, time and pages; what is used least goes first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

from quire.core.errors import InvalidArgument, QuotaExceeded, UnknownHandle
from quire.core.ids import ModelId, TenantId
from quire.node import KeptPages
from quire.server.answers.frame import Frame
from quire.server.responses.background import BackgroundRun
from quire.server.responses.creation import base_response
from quire.server.responses.store import ResponseLimits, ResponseStore, StoredResponse
from quire.server.responses.translation import messages_of, resolved
from quire.server.schemas.messages import AssistantMessage
from quire.server.schemas.response_items import (
    FunctionCallItem,
    InputItem,
    ItemReference,
    MessageItem,
    OutputMessage,
    ReasoningItem,
    TextItemPart,
)
from quire.server.schemas.responses import ResponsesRequest

TENANT = TenantId("a")
OTHER = TenantId("b")


class Time:
    now_s = 0.0


class FakePages:
    model = ModelId("m")

    def __init__(self, num_pages: int) -> None:
        self.num_pages = num_pages
        self.released = False

    def release(self) -> None:
        self.released = True


class FakeRun:
    num_bytes = 0

    def __init__(self) -> None:
        self.ended = False
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


@pytest.fixture
def clock() -> Time:
    return Time()


@pytest.fixture
def make(clock: Time) -> Callable[..., ResponseStore]:
    def make_store(**limits: Any) -> ResponseStore:
        return ResponseStore(ResponseLimits(**limits), lambda: clock.now_s, lambda engine: 100)

    return make_store


def entry(name: str, *, text: str = "hi", num_pages: int | None = None) -> StoredResponse:
    body = ResponsesRequest.model_validate({"input": text})
    frame = Frame(key=name, created_unix_s=1, model="m", fingerprint="f")
    made = StoredResponse(
        f"resp_{name}",
        TENANT,
        [{"id": f"msg_{name}", "type": "message", "role": "user", "content": text}],
        base_response(body, frame),
    )
    if num_pages is not None:
        made.kept = cast(KeptPages, FakePages(num_pages))
    return made


def is_there(store: ResponseStore, made: StoredResponse) -> bool:
    return store.holds(made)


def test_the_one_used_longest_ago_goes_first(make: Callable[..., ResponseStore]) -> None:
    store = make(max_responses=2)
    one, two, three = entry("1"), entry("2"), entry("3")
    store.put(one)
    store.put(two)
    store.get(TENANT, one.id)
    store.put(three)
    assert [is_there(store, made) for made in (one, two, three)] == [True, False, True]
    with pytest.raises(UnknownHandle, match="resp_2"):
        store.get(TENANT, two.id)
    with pytest.raises(InvalidArgument):
        store.item(TENANT, "msg_2", "input[0].id")
    found = store.item(TENANT, "msg_1", "input[0].id")
    assert isinstance(found, MessageItem)
    assert found.content == "hi"


def test_bytes_are_bounded_but_the_newest_stays(make: Callable[..., ResponseStore]) -> None:
    store = make(max_bytes=10_000)
    small, large = entry("1"), entry("2", text="x" * 20_000)
    store.put(small)
    store.put(large)
    assert not is_there(store, small)
    assert is_there(store, large)
    store.put(entry("3"))
    assert not is_there(store, large)


def test_many_short_items_count_for_what_they_take(make: Callable[..., ResponseStore]) -> None:
    store = make(max_bytes=1_000_000)
    short, last = entry("1"), entry("2")
    short.input_items *= 2000
    store.put(short)
    store.put(last)
    assert not is_there(store, short)


def test_what_is_not_used_is_forgotten(make: Callable[..., ResponseStore], clock: Time) -> None:
    store = make(ttl_s=10)
    used, unused = entry("1"), entry("2")
    store.put(used)
    store.put(unused)
    clock.now_s = 6
    store.get(TENANT, used.id)
    clock.now_s = 11
    store.get(TENANT, used.id)
    assert not is_there(store, unused)
    clock.now_s = 21
    with pytest.raises(UnknownHandle):
        store.get(TENANT, used.id)


def test_what_a_tenant_that_calls_no_more_has_is_forgotten_too(
    make: Callable[..., ResponseStore], clock: Time
) -> None:
    store = make(ttl_s=10)
    silent, calling = entry("1", num_pages=3), entry("2")
    calling.tenant = OTHER
    store.put(silent)
    clock.now_s = 11
    store.put(calling)
    assert not is_there(store, silent)
    assert silent.kept is not None
    assert silent.kept.released


def test_an_item_is_found_as_long_as_one_of_those_who_have_it_is_stored(
    make: Callable[..., ResponseStore],
) -> None:
    """A client that sends the whole conversation names the items of earlier responses again."""
    store = make()
    first, second, third = entry("1"), entry("2"), entry("3")
    second.input_items += first.input_items
    third.input_items += first.input_items
    for made in (first, second, third):
        store.put(made)
    for made in (third, first):
        store.delete(TENANT, made.id)
        assert store.item(TENANT, "msg_1", "input[0].id")
    store.delete(TENANT, second.id)
    with pytest.raises(InvalidArgument, match="send the item itself"):
        store.item(TENANT, "msg_1", "input[0].id")


def test_an_item_that_no_client_may_send_is_refused_by_its_reference(
    make: Callable[..., ResponseStore],
) -> None:
    """A model that is not constrained may call a function of any name."""
    store = make()
    made = entry("1")
    call = {"id": "fc_1", "type": "function_call", "call_id": "c", "name": "", "arguments": "{}"}
    made.input_items.append(call)
    store.put(made)
    with pytest.raises(InvalidArgument, match="previous_response_id"):
        store.item(TENANT, "fc_1", "input[0].id")


def test_pages_are_bounded_apart_from_texts(make: Callable[..., ResponseStore]) -> None:
    store = make(page_share=0.25)
    made = [entry(str(number), num_pages=10) for number in range(3)]
    for one in made:
        store.put(one)
    assert [one.kept is not None and one.kept.released for one in made] == [True, False, False]
    assert all(is_there(store, one) for one in made)


def test_what_goes_gives_its_pages_back(make: Callable[..., ResponseStore]) -> None:
    store = make()
    made = entry("1", num_pages=3)
    store.put(made)
    store.delete(TENANT, made.id)
    assert made.kept is not None
    assert made.kept.released
    with pytest.raises(UnknownHandle):
        store.delete(TENANT, made.id)


def test_one_deleted_while_it_ends_gives_its_pages_back(
    make: Callable[..., ResponseStore],
) -> None:
    """Its answer is complete, so that it keeps pages, but nobody can ask for it any more."""
    store = make()
    made = entry("1")
    store.put(made)
    store.delete(TENANT, made.id)
    made.kept = cast(KeptPages, FakePages(3))
    store.finish(made)
    assert made.kept.released
    assert not is_there(store, made)


def test_one_that_ran_for_longer_than_the_unused_stay_is_kept_with_its_pages(
    make: Callable[..., ResponseStore], clock: Time
) -> None:
    store = make(ttl_s=10, max_bytes=1)
    made, run = entry("1"), FakeRun()
    made.run = cast(BackgroundRun, run)
    store.put(made)
    clock.now_s = 20
    run.ended = True
    made.kept = cast(KeptPages, FakePages(3))
    store.finish(made)
    assert is_there(store, made)
    assert not made.kept.released
    store.delete(TENANT, made.id)
    assert store._shelves.num_bytes(TENANT) == 0


def test_what_runs_is_not_pushed_out(make: Callable[..., ResponseStore], clock: Time) -> None:
    store = make(max_responses=1, ttl_s=10)
    running = entry("1")
    run = FakeRun()
    running.run = cast(BackgroundRun, run)
    store.put(running)
    clock.now_s = 20
    store.put(entry("2"))
    assert is_there(store, running)
    run.ended = True
    store.put(entry("3"))
    assert not is_there(store, running)


def test_events_of_what_runs_count_while_they_come(make: Callable[..., ResponseStore]) -> None:
    store = make(max_bytes=20_000)
    old, running, other = entry("old", text="x" * 5000), entry("runs"), entry("other")
    runs = running.run, other.run = FakeRun(), FakeRun()
    for one in (old, running, other):
        store.put(one)
    runs[0].num_bytes = 6000
    store.grown(running)
    assert is_there(store, old)
    runs[0].num_bytes = 12_000
    store.grown(running)
    assert not is_there(store, old), "what has ended makes room"
    runs[1].num_bytes = 12_000
    with pytest.raises(QuotaExceeded, match=r"all that is stored and running 2\d{4} of 20000"):
        store.grown(other)
    assert is_there(store, running)
    assert is_there(store, other)
    runs[1].ended = True
    store.finish(other)
    store.grown(running)
    assert not is_there(store, other), "the one that was too long has ended, and goes"
    runs[0].num_bytes = 13_000
    store.grown(running)
    store.delete(TENANT, running.id)
    store.put(fresh := entry("fresh", text="y" * 15_000))
    assert is_there(store, fresh)
    runs[0].num_bytes = 10**6
    store.grown(running)
    store.put(entry("small"))
    assert is_there(store, fresh), "what was deleted counts no more"


def test_tenants_have_shelves_of_their_own(make: Callable[..., ResponseStore]) -> None:
    store = make(max_responses=1)
    made, other = entry("1"), entry("2")
    other.tenant = OTHER
    store.put(made)
    store.put(other)
    assert is_there(store, made)
    with pytest.raises(UnknownHandle):
        store.get(OTHER, made.id)


def test_an_item_is_found_without_making_the_others(
    make: Callable[..., ResponseStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An answer with log probabilities is long."""
    store, made = make(), entry("one", text="found")
    made.response = made.response and made.response.model_copy(
        update={"output": [OutputMessage(id="msg_out", status="completed", content=[])]}
    )
    store.put(made)
    assert store.find_item(TENANT, "msg_out") == made.response.output[0].model_dump()  # type: ignore[union-attr]
    num_made = 0

    def counted(model: OutputMessage) -> dict[str, Any]:
        nonlocal num_made
        num_made += 1
        return {"id": model.id}

    monkeypatch.setattr(OutputMessage, "model_dump", counted)
    found = store.find_item(TENANT, "msg_one")
    assert (found or {})["content"] == "found"
    store.delete(TENANT, made.id)
    assert store.find_item(TENANT, "msg_out") is None
    assert num_made == 0


def test_an_item_that_many_refer_to_is_looked_up_once() -> None:
    asked: list[tuple[str, str]] = []

    def find(item_id: str, param: str) -> InputItem:
        asked.append((item_id, param))
        return MessageItem(role="user", content=item_id)

    said = MessageItem(role="user", content="b")
    given: list[InputItem] = [ItemReference(id="a"), said, ItemReference(id="c")]
    found = resolved(given * 3, find, "input")
    assert [item.content for item in found if isinstance(item, MessageItem)] == ["a", "b", "c"] * 3
    assert asked == [("a", "input[0].id"), ("c", "input[2].id")]


def test_reasoning_of_many_items_is_joined_once() -> None:
    """Each joins a turn whose text may be megabytes already."""
    texts = [TextItemPart(type="summary_text", text=str(number)) for number in range(100)]
    items: list[InputItem] = [ReasoningItem(type="reasoning", content=[text]) for text in texts]
    calls = [FunctionCallItem(type="function_call", call_id=f"c{n}", name="f") for n in range(3)]
    empty = ReasoningItem(type="reasoning", content=[TextItemPart(type="summary_text", text="")])
    said = MessageItem(role="user", content="go on")
    messages = messages_of([*items, empty, *calls, said, items[5], said, empty, said])
    turns = [one for one in messages if isinstance(one, AssistantMessage)]
    joined = "\n".join(map(str, range(100)))
    assert [turn.reasoning_content for turn in turns] == [joined, "5", None]
    assert [len(turn.tool_calls or ()) for turn in turns] == [3, 0, 0]
    assert [one.role for one in messages] == ["assistant", "user"] * 3
