"""Texts that no template has rendered begin as the model's tokenizer begins one."""

from __future__ import annotations

import httpx
import pytest
from scripted_server import MODEL, TOKENIZER, running_server, scripted_engine

from quire.core.ids import ModelId
from quire.core.interfaces import ServedModel
from quire.server.requests.plain_text import text_tokens

BOS = TOKENIZER.special_id("<|bos|>")


@pytest.mark.parametrize(
    ("text", "add_special_tokens", "expected"),
    [
        ("hi", None, [BOS, *b"hi"]),
        ("hi", True, [BOS, *b"hi"]),
        ("hi", False, [*b"hi"]),
        ("<|bos|>hi", None, [BOS, *b"hi"]),
        ("<|bos|>hi", False, [BOS, *b"hi"]),
        ("", None, [BOS]),
        ("", False, []),
    ],
)
def test_a_text_has_one_bos(
    text: str, add_special_tokens: bool | None, expected: list[int]
) -> None:
    model = ServedModel(
        id=ModelId(MODEL),
        base=ModelId(MODEL),
        info=scripted_engine().info,
        tokenizer=TOKENIZER,
        text_start=(BOS,),
    )
    assert text_tokens(model, text, add_special_tokens) == expected


def test_completions_and_tokenize_agree() -> None:
    with (
        running_server(text_start=(BOS,)) as server,
        httpx.Client(base_url=server.url, timeout=60) as http,
    ):
        body = {"prompt": "say ok", "return_token_ids": True, "echo": True}
        answer = http.post("/v1/completions", json=body).json()
        tokens = http.post("/tokenize", json={"prompt": "say ok"}).json()["tokens"]
        chat = {"messages": [{"role": "user", "content": "say ok"}]}
        rendered = http.post("/tokenize", json=chat).json()["tokens"]
    (choice,) = answer["choices"]
    assert choice["prompt_token_ids"] == tokens == [BOS, *b"say ok"]
    assert answer["usage"]["prompt_tokens"] == 7
    assert choice["text"] == "say okHello there.", "an echo repeats what was sent, and no more"
    assert rendered.count(BOS) == 1
