"""Prompts of conversations: the model's own template, its special tokens, no template at all."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pytest
from scripted_server import MODEL, TOKENIZER, scripted_engine

from quire.core.errors import InvalidArgument
from quire.core.ids import ModelId
from quire.core.interfaces import ServedModel
from quire.server.chat.prompt import ChatRenderer, TemplateInput, warn_of_broken_templates

HI = TemplateInput([{"role": "user", "content": "hi"}])


@pytest.fixture
def renderer() -> Iterator[ChatRenderer]:
    renderer = ChatRenderer()
    yield renderer
    renderer.close()


@pytest.fixture
def model() -> ServedModel:
    return ServedModel(
        id=ModelId(MODEL),
        base=ModelId(MODEL),
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


ONE_CALL = """\
{%- for m in messages %}
{%- if m.tool_calls is defined and m.tool_calls | length != 1 %}
{{- raise_exception("single tool-calls") }}{% endif %}
{{- m.content }}{% for c in m.tool_calls %}<{{ c.function.name }}>{% endfor %}
{%- endfor %}"""


@pytest.mark.parametrize("form", ['<|start_header_id|>"parameters"', "<|channel|><|message|>"])
async def test_several_calls_are_shown_to_a_template_that_takes_one(
    renderer: ChatRenderer, model: ServedModel, form: str
) -> None:
    """A client may send back all calls of an answer in one message, as it has got them."""
    calls = [{"id": name, "function": {"name": name, "arguments": {}}} for name in "ab"]
    results = [{"role": "tool", "tool_call_id": name, "content": f"{name}!"} for name in "ba"]
    said = {"role": "assistant", "content": "", "tool_calls": calls}
    model = dataclasses.replace(model, chat_template=ONE_CALL + form)
    prompt = await renderer.render(model, TemplateInput([*HI.messages, said, *results]))
    assert prompt.text == "hi<a>a!<b>b!" + form
    model = dataclasses.replace(model, chat_template=ONE_CALL + "[TOOL_CALLS]")
    with pytest.raises(InvalidArgument, match="single tool-calls"):
        await renderer.render(model, TemplateInput([*HI.messages, said, *results]))


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
