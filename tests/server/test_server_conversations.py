"""/v1/conversations through the openai package, and responses that are part of one."""

from __future__ import annotations

from typing import Any

import httpx
import openai
import pytest
from scripted_server import MODEL, running_server

from quire.core.config import TenantConfig
from quire.core.errors import NeverWithinQuota, UnknownHandle
from quire.core.ids import TenantId
from quire.server.responses.conversations import ConversationLimits, ConversationStore
from quire.server.responses.store import ResponseStore, StoredResponse

A, B = TenantId("a"), TenantId("b")


def said(text: str, role: str = "user") -> Any:
    return {"type": "message", "role": role, "content": text}


def texts(client: openai.OpenAI, conversation: str) -> list[str]:
    items = client.conversations.items.list(conversation, order="asc")
    return [item.content[0].text for item in items if item.type == "message"]  # type: ignore[union-attr]


def answer(client: openai.OpenAI, text: Any, conversation: Any, **fields: Any) -> Any:
    return client.responses.create(model=MODEL, input=text, conversation=conversation, **fields)


def test_a_conversation_from_its_beginning_to_its_end(client: openai.OpenAI) -> None:
    made = client.conversations.create(metadata={"a": "b"}, items=[said("say one")])
    assert (made.object, made.metadata) == ("conversation", {"a": "b"})
    assert made.id.startswith("conv_")
    assert client.conversations.retrieve(made.id) == made
    updated = client.conversations.update(made.id, metadata={"c": "d"})
    assert updated.metadata == {"c": "d"}
    added = client.conversations.items.create(made.id, items=[said("two", "assistant")])
    assert [item.id for item in added.data] == [added.first_id]
    assert added.first_id is not None
    item = client.conversations.items.retrieve(added.first_id, conversation_id=made.id)
    assert item == added.data[0]
    assert texts(client, made.id) == ["say one", "two"]
    client.conversations.items.delete(added.first_id, conversation_id=made.id)
    assert texts(client, made.id) == ["say one"]
    assert client.conversations.delete(made.id).deleted
    with pytest.raises(openai.NotFoundError):
        client.conversations.retrieve(made.id)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("store", [False, True])
def test_responses_go_on_from_a_conversation_and_add_to_it(
    client: openai.OpenAI, stream: bool, store: bool
) -> None:
    made = client.conversations.create().id
    first = answer(client, "say one", made, store=store)
    assert first.conversation.id == made
    second = answer(client, "say two", {"id": made}, store=store, stream=stream)
    if stream:
        second = list(second)[-1].response
    assert second.usage.input_tokens > first.usage.input_tokens + len("one")
    assert texts(client, made) == ["say one", "one", "say two", "two"]
    third = answer(client, [], made)
    assert third.usage.input_tokens > second.usage.input_tokens


def test_what_a_response_keeps_of_its_conversation_is_counted(
    client: openai.OpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It outlives the conversation."""
    stored: list[StoredResponse] = []
    put = ResponseStore.put

    def noted(store: ResponseStore, entry: StoredResponse) -> None:
        put(store, entry)
        stored.append(entry)

    monkeypatch.setattr(ResponseStore, "put", noted)
    made = client.conversations.create(items=[said("a" * 200)] * 3).id
    answer(client, "say one", made)
    client.conversations.delete(made)
    (entry,) = stored
    assert sum(len(str(message.content)) for message in entry.history) > 600
    assert entry.num_bytes > 3 * 1024, "of three items that came before it"


def test_a_tool_loop_in_a_conversation(client: openai.OpenAI) -> None:
    tools: Any = [{"type": "function", "name": "add", "parameters": {}, "strict": None}]
    made = client.conversations.create().id
    (call,) = answer(client, 'call add {"a": 1}', made, tools=tools).output
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "12"}
    assert answer(client, [output], made, tools=tools).output_text == "The tool said 12."
    kinds = [item.type for item in client.conversations.items.list(made, order="asc")]
    assert kinds == ["message", "function_call", "function_call_output", "message"]


def test_a_response_in_the_background_adds_to_its_conversation(client: openai.OpenAI) -> None:
    made = client.conversations.create().id
    events = list(answer(client, "say one", made, background=True, stream=True))
    assert events[-1].type == "response.completed"
    assert texts(client, made) == ["say one", "one"]


def test_what_has_failed_adds_nothing(client: openai.OpenAI) -> None:
    made = client.conversations.create().id
    with pytest.raises(openai.BadRequestError):
        answer(client, "x" * 3000, made)
    assert texts(client, made) == []


def test_items_are_listed_in_pages(client: openai.OpenAI) -> None:
    said_all = [said(str(number)) for number in range(5)]
    made = client.conversations.create(items=said_all).id
    page = client.conversations.items.list(made, limit=2)
    assert page.has_more
    assert len(page.data) == 2
    assert [item.content[0].text for item in page] == ["4", "3", "2", "1", "0"]  # type: ignore[union-attr]


def test_items_that_are_stored_are_added_by_their_ids(client: openai.OpenAI) -> None:
    stored = client.responses.create(model=MODEL, input="say kept")
    reference: Any = {"type": "item_reference", "id": stored.output[0].id}
    made = client.conversations.create(items=[reference]).id
    assert texts(client, made) == ["kept"]


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("", {"metadata": {"a": 1}}, 400),
        ("", {"items": [{"type": "web_search_call"}]}, 400),
        ("", {"name": "x"}, 400),
        ("/conv_0", {"metadata": {}}, 404),
        ("/conv_0/items", {"items": [{"role": "user", "content": "x"}]}, 404),
        ("/conv_0/items", {"items": []}, 400),
    ],
)
def test_bad_requests_are_refused(
    http: httpx.Client, path: str, body: dict[str, Any], status: int
) -> None:
    found = http.post(f"/v1/conversations{path}", json=body)
    assert found.status_code == status, found.text


def test_a_conversation_that_is_not_there_answers_nobody(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="no conversation 'conv_0'"):
        answer(client, "say x", "conv_0")
    with pytest.raises(openai.BadRequestError, match="exclude each other"):
        answer(client, "say x", "conv_0", previous_response_id="resp_0")


def test_one_tenant_does_not_see_anothers_conversations() -> None:
    tenants = [TenantConfig(TenantId(name), api_keys=(f"key-{name}",)) for name in ("one", "two")]
    with running_server(tenants=tenants) as server:
        mine, other = (
            openai.OpenAI(base_url=f"{server.url}/v1", api_key=f"key-{name}", max_retries=0)
            for name in ("one", "two")
        )
        made = mine.conversations.create(items=[said("secret")]).id
        for use in (
            lambda: other.conversations.retrieve(made),
            lambda: other.conversations.delete(made),
            lambda: other.conversations.items.list(made),
            lambda: answer(other, "say x", made),
        ):
            with pytest.raises(openai.NotFoundError):
                use()
        mine.close()
        other.close()


# -- the store -------------------------------------------------------------------------------------


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def item(name: str, text: str = "") -> dict[str, Any]:
    return {"id": name, "text": text}


def test_conversations_are_bounded_in_number_and_bytes_and_the_oldest_go() -> None:
    store = ConversationStore(
        ConversationLimits(max_conversations=2, max_items=3, max_bytes=10_000), Clock(), Clock()
    )
    first, second = store.create(A, {}, []), store.create(A, {}, [])
    kept = store.create(B, {}, [])
    store.get(A, first.id)
    third = store.create(A, {}, [])
    with pytest.raises(UnknownHandle):
        store.get(A, second.id)
    store.add(third, [item("x", "y" * 8000)])
    store.add(first, [item("x", "y" * 8000)])
    with pytest.raises(UnknownHandle):
        store.get(A, third.id)
    with pytest.raises(NeverWithinQuota, match="begin another one"):
        store.add(first, [item("z", "y" * 2000)])
    with pytest.raises(NeverWithinQuota):
        store.create(A, {}, [item(str(number)) for number in range(4)])
    store.remove(first, "x")
    assert first.num_bytes == 0
    assert store.get(B, kept.id) is kept


def test_a_full_conversation_is_told_before_any_work() -> None:
    store = ConversationStore(ConversationLimits(max_items=2), Clock(), Clock())
    entry = store.create(A, {}, [item("a")])
    store.check_room(entry)
    store.grow(entry, [item("b"), item("c")])
    with pytest.raises(NeverWithinQuota, match="4 items"):
        store.check_room(entry)


def test_conversations_go_when_nobody_uses_them_and_grow_no_more() -> None:
    clock = Clock()
    store = ConversationStore(ConversationLimits(ttl_s=10), clock, clock)
    entry = store.create(A, {}, [])
    clock.now_s = 9
    store.get(A, entry.id)
    clock.now_s = 18
    store.get(A, entry.id)
    clock.now_s = 28
    with pytest.raises(UnknownHandle, match="not been used for 10 s"):
        store.get(A, entry.id)
    store.grow(entry, [item("late")])
    assert entry.items == []
