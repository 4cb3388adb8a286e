"""Prompts of conversations: the model's own template, its special tokens, no template at all."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pytest
from scripted_server import MODEL, TOKENIZER, scripted_engine

from quire.core.errors import InvalidArgument
from quire.core.ids import EngineId, ModelId
from quire.core.interfaces import ServedModel
from quire.server.chat.prompt import ChatRenderer, Conversation, warn_of_broken_templates

HI = Conversation([{"role": "user", "content": "hi"}])


@pytest.fixture
def renderer() -> Iterator[ChatRenderer]:
    renderer = ChatRenderer()
    yield renderer
    renderer.close()


@pytest.fixture
def model() -> ServedModel:
    return ServedModel(
        id=ModelId(MODEL),
        engine=EngineId(MODEL),
        info=scripted_engine().info,
        tokenizer=TOKENIZER,
        chat_template="{{ bos_token }}{{ messages[0].content }}",
        special_tokens={"bos_token": "<|bos|>"},
    )


async def test_special_tokens_are_the_models(renderer: ChatRenderer, model: ServedModel) -> None:
    prompt = await renderer.render(model, HI)
    assert prompt.text == "<|bos|>hi"
    assert prompt.token_ids == tuple(TOKENIZER.encode("<|bos|>hi"))
    assert not prompt.opens_reasoning


async def test_a_prompt_may_open_the_reasoning(renderer: ChatRenderer, model: ServedModel) -> None:
    model = dataclasses.replace(model, chat_template="{{ messages[0].content }}<think>\n")
    assert (await renderer.render(model, HI)).opens_reasoning


async def test_a_model_without_template_is_the_callers_to_change(
    renderer: ChatRenderer, model: ServedModel
) -> None:
    with pytest.raises(InvalidArgument, match="no chat template") as caught:
        await renderer.render(dataclasses.replace(model, chat_template=None), HI)
    assert caught.value.details["param"] == "model"


async def test_a_template_that_does_not_compile_is_named(
    renderer: ChatRenderer, model: ServedModel, caplog: pytest.LogCaptureFixture
) -> None:
    broken = dataclasses.replace(model, chat_template="{% for m in messages %}{{ m.content }}")
    with pytest.raises(
        InvalidArgument, match=f"{MODEL}' cannot chat, for .* not compile"
    ) as caught:
        await renderer.render(broken, HI)
    assert caught.value.details["param"] == "model"
    assert "endfor" in caught.value.message
    warn_of_broken_templates([model, broken])
    (record,) = caplog.records
    assert "serves no chats: the chat template does not compile" in record.getMessage()
