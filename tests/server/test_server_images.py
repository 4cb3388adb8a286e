"""Images in conversations, over every dialect. What the fake engine says depends on all it saw."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from scripted_server import MODEL, TOKENIZER, running_server

from quire.core.engine_info import ImageInput
from quire.core.errors import PromptTooLong
from quire.server.chat.images import expand_images
from quire.server.responses.translation import items_of, messages_of
from quire.server.schemas.anthropic import MessagesRequest
from quire.server.schemas.responses import ResponsesRequest
from quire.testing import FakeEngine, fake_pool

SEEN = ImageInput(
    num_embeds=20,
    token=TOKENIZER.special_id("<|tool|>"),
    max_bytes=1000,
    max_pixels=1000,
    formats=("PNG", "JPEG"),
)
TEMPLATE = """\
{%- for message in messages %}<|{{ message['role'] }}|>
{%- for part in message['content'] %}
{%- if part['type'] == 'image' %}<|tool|>{% else %}{{ part['text'] }}{% endif %}
{%- endfor %}<|end|>{% endfor %}<|assistant|>"""
PNG = b"\x89PNG\r\n\x1a\n"


def load() -> FakeEngine:
    pool = fake_pool(page_size=16, num_blocks=256, max_batch_tokens=16)
    return FakeEngine(pool, tokenizer=TOKENIZER, model=MODEL, max_model_len=1024, images=SEEN)


@pytest.fixture(scope="module")
def seeing() -> Iterator[httpx.Client]:
    with (
        running_server(load=load, template=TEMPLATE) as running,
        httpx.Client(base_url=running.url, timeout=60) as http,
    ):
        yield http


def url_of(file: bytes, kind: str = "image/png") -> str:
    return f"data:{kind};base64,{base64.b64encode(file).decode()}"


def image(file: bytes) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url_of(file), "detail": "low"}}


def text(said: str) -> dict[str, Any]:
    return {"type": "text", "text": said}


def chat(http: httpx.Client, *content: Any, **fields: Any) -> httpx.Response:
    body = {
        "messages": [{"role": "user", "content": list(content)}],
        "max_tokens": 8,
        "temperature": 0,
        "return_token_ids": True,
        **fields,
    }
    return http.post("/v1/chat/completions", json=body)


def tokens(response: httpx.Response) -> list[list[int]]:
    assert response.status_code == 200, response.text
    return [choice["token_ids"] for choice in response.json()["choices"]]


def test_the_answer_depends_on_the_image_and_its_place(seeing: httpx.Client) -> None:
    first = chat(seeing, text("What is "), image(PNG + b"a"), text(" this?"))
    found = tokens(first)
    again = chat(seeing, text("What is "), image(PNG + b"a"), text(" this?"))
    assert tokens(again) == found
    assert tokens(chat(seeing, text("What is "), image(PNG + b"b"), text(" this?"))) != found
    assert tokens(chat(seeing, image(PNG + b"a"), text("What is  this?"))) != found
    assert tokens(chat(seeing, text("What is "), text(" this?"))) != found
    usage = first.json()["usage"]
    assert usage["prompt_tokens"] == len("What is  this?") + SEEN.num_embeds + 3


def test_several_images_and_several_choices(seeing: httpx.Client) -> None:
    parts = [image(PNG + b"a"), image(b"\xff\xd8\xff"), text("?"), image(PNG + b"c")]
    (one,) = tokens(chat(seeing, *parts))
    assert tokens(chat(seeing, *parts, n=3)) == [one] * 3
    swapped = [parts[1], parts[0], *parts[2:]]
    assert tokens(chat(seeing, *swapped)) != [one]


def test_a_last_answer_is_continued(seeing: httpx.Client) -> None:
    """An earlier refusal is a part like any text."""
    messages = [
        {"role": "user", "content": [image(PNG), text("Who?")]},
        {"role": "assistant", "content": None, "refusal": "No."},
        {"role": "user", "content": "Please."},
        {"role": "assistant", "content": "It is"},
    ]
    fields = {"add_generation_prompt": False, "continue_final_message": True}
    found = seeing.post("/tokenize", json={"messages": messages, **fields}).json()["tokens"]
    said = TOKENIZER.decode(found).replace("<|tool|>", "")
    assert (
        said == "<|user|>Who?<|end|><|assistant|>No.<|end|><|user|>Please.<|end|><|assistant|>It is"
    )


def test_text_before_the_first_image_is_cached(seeing: httpx.Client) -> None:
    said = "A long and quiet beginning, the same every time. "
    chat(seeing, text(said), image(PNG + b"1"))
    usage = chat(seeing, text(said), image(PNG + b"2")).json()["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] == 48


def test_every_dialect_sees_the_same(seeing: httpx.Client) -> None:
    (wanted,) = tokens(chat(seeing, image(PNG), text("Who?")))
    said = TOKENIZER.decode(wanted, skip_special=True)
    block = {"type": "image", "source": {"type": "base64", "media_type": "image/png"}}
    block["source"]["data"] = base64.b64encode(PNG).decode()  # type: ignore[index]
    message = {"role": "user", "content": [block, text("Who?")]}
    body: dict[str, Any] = {"messages": [message], "max_tokens": 8, "temperature": 0}
    answer = seeing.post("/v1/messages", json={"model": MODEL, **body}).json()
    assert "".join(part["text"] for part in answer["content"]) == said
    assert answer["usage"]["input_tokens"] == SEEN.num_embeds + 4 + 3
    content = [
        {"type": "input_image", "image_url": url_of(PNG), "detail": "auto"},
        {"type": "input_text", "text": "Who?"},
    ]
    body = {"input": [{"role": "user", "content": content}], "max_output_tokens": 8}
    answer = seeing.post("/v1/responses", json={**body, "temperature": 0}).json()
    assert answer["output"][-1]["content"][0]["text"] == said
    found = seeing.post("/tokenize", json={"messages": [{**message, "content": [image(PNG)]}]})
    assert found.json()["tokens"].count(SEEN.token) == SEEN.num_embeds


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ({"type": "image_url", "image_url": {"url": "http://169.254.169.254/x.png"}}, "fetched"),
        ({"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}, "fetched"),
        ({"type": "image_url", "image_url": {"url": url_of(PNG, "image/gif")}}, "fetched"),
        ({"type": "image_url", "image_url": {"url": "data:image/png;base64,@@"}}, "not base64"),
        ({"type": "image_url"}, "has no url"),
        (image(b"GIF89a"), "not a PNG or JPEG"),
        (image(PNG + bytes(1000)), "at most 1000"),
        (image(PNG + b"damaged"), "may be damaged"),
        ({"type": "input_audio"}, "reads text and images only"),
        (text("<|tool|>"), "its token for images may not stand in text"),
    ],
)
def test_bad_images_are_refused(seeing: httpx.Client, part: dict[str, Any], message: str) -> None:
    response = chat(seeing, text("a"), part, text("b"))
    assert response.status_code == 400, response.text
    assert message in response.json()["error"]["message"]
    assert len(response.json()["error"]["message"]) < 500


def test_the_url_of_an_image_of_anthropics_is_read_as_openais(seeing: httpx.Client) -> None:
    def asked(url: str) -> httpx.Response:
        block = {"type": "image", "source": {"type": "url", "url": url}}
        body = {"messages": [{"role": "user", "content": [block]}], "max_tokens": 1}
        return seeing.post("/v1/messages", json={"model": MODEL, **body})

    assert asked(url_of(PNG)).json()["usage"]["input_tokens"] == SEEN.num_embeds + 3
    refused = asked("http://169.254.169.254/x.png")
    assert refused.status_code == 400
    assert "fetched" in refused.json()["error"]["message"]


def test_images_that_leave_no_room_are_refused(seeing: httpx.Client) -> None:
    response = chat(seeing, *[image(PNG)] * 52)
    assert response.status_code == 400
    assert "holds 1024" in response.json()["error"]["message"]


def test_many_small_images_are_counted_before_their_tokens_are_made() -> None:
    found, images = expand_images([1, SEEN.token, 2], [PNG], SEEN, 22)
    assert (len(found), images[0].start) == (22, 1)
    with pytest.raises(PromptTooLong, match="23 tokens, 20 for each of 1 images"):
        expand_images([1, SEEN.token, 2, 3], [PNG], SEEN, 22)


def test_a_large_image_passes_in_every_dialect() -> None:
    """The bound of an image is not that of a text, which is 4 MiB."""
    data = base64.b64encode(PNG + bytes(5 << 20)).decode()
    source = {"type": "base64", "media_type": "image/png", "data": data}
    MessagesRequest.model_validate(
        {
            "max_tokens": 1,
            "messages": [{"role": "user", "content": [{"type": "image", "source": source}]}],
        }
    )
    part = {"type": "input_image", "image_url": f"data:image/png;base64,{data}"}
    body = {"input": [{"role": "user", "content": [part]}]}
    items = items_of(ResponsesRequest.model_validate(body), lambda item, param: pytest.fail(item))
    assert messages_of(items)
