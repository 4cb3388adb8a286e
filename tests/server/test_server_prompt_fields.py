"""vLLM's fields of a chat's prompt: each does what it says, or its refusal says why not."""

from __future__ import annotations

from typing import Any

import httpx
import openai
import pytest
from scripted_server import MODEL, TOKENIZER, running_server

from quire.testing.tokenizer import CHAT_TEMPLATE

CHAT = "/v1/chat/completions"
HI = [{"role": "user", "content": "say hi"}]
BOS = TOKENIZER.special_id("<|bos|>")


def ask(http: httpx.Client, **fields: Any) -> dict[str, Any]:
    answer = http.post(CHAT, json={"messages": HI, "return_token_ids": True, **fields})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def refusal(http: httpx.Client, **fields: Any) -> str:
    answer = http.post(CHAT, json={"messages": HI, **fields})
    assert answer.status_code == 400
    return str(answer.json()["error"]["message"])


def test_a_prompt_keeps_its_last_tokens(http: httpx.Client) -> None:
    whole = ask(http)["prompt_token_ids"]
    cut = ask(http, truncate_prompt_tokens=9)
    assert cut["prompt_token_ids"] == whole[-9:]
    assert cut["usage"]["prompt_tokens"] == 9
    assert ask(http, truncate_prompt_tokens=500)["prompt_token_ids"] == whole
    assert "-1 or at least 1" in refusal(http, truncate_prompt_tokens=0)


def test_a_prompt_is_cut_to_what_fits(http: httpx.Client) -> None:
    long = [{"role": "user", "content": "x" * 3000}]
    found = ask(http, messages=long, truncate_prompt_tokens=-1, max_tokens=24)
    assert found["usage"]["prompt_tokens"] == 1000
    assert ask(http, messages=long, truncate_prompt_tokens=-1)["usage"]["prompt_tokens"] == 1023


def test_so_is_a_text_to_complete(http: httpx.Client) -> None:
    body = {"prompt": ["say abcdef", "abc"], "max_tokens": 2, "echo": True, "logprobs": 0}
    found = http.post("/v1/completions", json={**body, "truncate_prompt_tokens": 4}).json()
    texts = [choice["text"] for choice in found["choices"]]
    assert texts[0].startswith("cdef"), "the echo is of what was read"
    assert found["usage"]["prompt_tokens"] == 4 + 3
    long = {"prompt": "x" * 3000, "truncate_prompt_tokens": -1, "max_tokens": 24}
    assert http.post("/v1/completions", json=long).json()["usage"]["prompt_tokens"] == 1000
    zero = http.post("/v1/completions", json={**body, "truncate_prompt_tokens": 0})
    assert (zero.status_code, zero.json()["error"]["param"]) == (400, "truncate_prompt_tokens")


def test_log_probabilities_of_the_prompt(http: httpx.Client) -> None:
    found = ask(http, prompt_logprobs=2)
    ids, told = found["prompt_token_ids"], found["prompt_logprobs"]
    assert len(told) == len(ids)
    assert told[0] is None
    for token, figures in zip(ids[1:], told[1:], strict=True):
        own = figures[str(token)]
        assert own["logprob"] <= 0
        assert {1, 2} <= {one["rank"] for one in figures.values()}
        assert own["decoded_token"] == TOKENIZER.decode([token])
    assert "prompt_logprobs" not in ask(http)
    assert "whole answer alone" in refusal(http, prompt_logprobs=1, stream=True)


@pytest.mark.parametrize("stream", [False, True])
def test_reasoning_can_be_left_out(client: openai.OpenAI, stream: bool) -> None:
    said: Any = [{"role": "user", "content": "say <think>let me see</think>done"}]
    extra = {"include_reasoning": False}
    if stream:
        chunks = client.chat.completions.create(
            model=MODEL, messages=said, stream=True, extra_body=extra
        )
        deltas = [choice.delta.model_dump() for chunk in chunks for choice in chunk.choices]
        told = "".join(delta["content"] or "" for delta in deltas)
        assert not any(delta.get("reasoning") for delta in deltas)
    else:
        found = client.chat.completions.create(model=MODEL, messages=said, extra_body=extra)
        told = found.choices[0].message.content or ""
        assert "reasoning" not in found.choices[0].message.model_dump()
        details = found.usage.completion_tokens_details if found.usage else None
        assert details is not None
        assert details.reasoning_tokens
    assert told == "done"


def test_documents_reach_a_template_that_reads_them(http: httpx.Client) -> None:
    documents = [{"title": "a", "text": "one"}, {"title": "b", "text": "two"}]
    template = "{% for d in documents or () %}[{{ d.title }}: {{ d.text }}]{% endfor %}"
    with (
        running_server(template=template + CHAT_TEMPLATE) as server,
        httpx.Client(base_url=server.url, timeout=60) as reader,
    ):
        prompt = ask(reader, documents=documents)["prompt_token_ids"]
    assert TOKENIZER.decode(prompt).startswith("[a: one][b: two]")
    assert "reads no documents" in refusal(http, documents=documents)
    ask(http, documents=[])


def test_special_tokens_may_stand_before_what_a_template_rendered() -> None:
    plain = "{% for m in messages %}{{ m.content }}{% endfor %}"
    with (
        running_server(template=plain, text_start=(BOS,)) as server,
        httpx.Client(base_url=server.url, timeout=60) as http,
    ):
        assert ask(http)["prompt_token_ids"] == [*b"say hi"]
        added = ask(http, add_special_tokens=True)
    assert added["prompt_token_ids"] == [BOS, *b"say hi"]


def test_only_allowed_tools_are_called(client: openai.OpenAI) -> None:
    names = ("add", "noop")
    tools: Any = [{"type": "function", "function": {"name": name}} for name in names]
    allowed: Any = {
        "type": "allowed_tools",
        "allowed_tools": {
            "mode": "required",
            "tools": [{"type": "function", "function": {"name": "noop"}}],
        },
    }
    said: Any = [{"role": "user", "content": "call add {}"}]
    found = client.chat.completions.create(
        model=MODEL, messages=said, tools=tools, tool_choice=allowed, parallel_tool_calls=False
    )
    calls = found.choices[0].message.tool_calls or []
    assert [call.function.name for call in calls if call.type == "function"] == ["noop"]
    alone = client.chat.completions.create(model=MODEL, messages=said, tools=tools[1:])
    both = client.chat.completions.create(model=MODEL, messages=said, tools=tools)
    assert found.usage is not None
    assert alone.usage is not None
    assert both.usage is not None
    assert found.usage.prompt_tokens == alone.usage.prompt_tokens < both.usage.prompt_tokens
    allowed["allowed_tools"]["tools"][0]["function"]["name"] = "other"
    with pytest.raises(openai.BadRequestError, match="'other', which is not in tools"):
        client.chat.completions.create(model=MODEL, messages=said, tools=tools, tool_choice=allowed)


@pytest.mark.parametrize(
    ("field", "reason"),
    [
        ("use_beam_search", "launch the program beam_search"),
        ("chat_template", "only the model's own template"),
        ("web_search_options", "the server runs no tools"),
    ],
)
def test_what_others_serve_is_refused_with_the_reason(
    http: httpx.Client, field: str, reason: str
) -> None:
    message = refusal(http, **{field: {}})
    assert message.startswith(f"{field}: not served here: ")
    assert reason in message


# -- where tokens stand in the text ----------------------------------------------------------------


def offsets(http: httpx.Client, **fields: Any) -> tuple[str, list[str], list[int]]:
    answer = http.post("/v1/completions", json={"max_tokens": 4, "logprobs": 0, **fields})
    assert answer.status_code == 200, answer.text
    (choice,) = answer.json()["choices"]
    logprobs = choice["logprobs"]
    return choice["text"], logprobs["tokens"], logprobs["text_offset"]


def stand_where_they_say(text: str, tokens: list[str], places: list[int]) -> bool:
    return all(text[place:].startswith(token) for token, place in zip(tokens, places, strict=True))


def test_offsets_of_special_tokens_in_an_echoed_prompt(http: httpx.Client) -> None:
    for prompt in ("a<|end|>b", [ord("a"), TOKENIZER.special_id("<|end|>"), ord("b")]):
        text, tokens, places = offsets(http, prompt=prompt, echo=True)
        assert places[:4] == [0, 1, 8, 9]
        assert stand_where_they_say(text, tokens, places)


def test_what_was_put_before_a_prompt_takes_no_room_in_its_text() -> None:
    with (
        running_server(text_start=(BOS,)) as server,
        httpx.Client(base_url=server.url, timeout=60) as http,
    ):
        text, tokens, places = offsets(http, prompt="ab", echo=True)
    assert tokens[:3] == ["<|bos|>", "a", "b"]
    assert places[:4] == [0, 0, 1, 2]
    assert stand_where_they_say(text, tokens[1:], places[1:])


def test_offsets_of_special_tokens_that_are_shown_in_an_answer(http: httpx.Client) -> None:
    asked = {"prompt": "say x", "ignore_eos": True, "max_tokens": 3}
    text, tokens, places = offsets(http, **asked, skip_special_tokens=False)
    assert stand_where_they_say(text, tokens, places)
    assert places[2] == 1 + len(tokens[1])
    text, _, places = offsets(http, **asked)
    assert text == "x"
    assert places == [0, 1, 1]
