"""Rendering chat templates, and what hostile ones may not do."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace

import pytest

from quire.core.errors import InvalidArgument, ModelFormatError
from quire.programs.chat import ChatTemplate, chat_template
from quire.testing import LocalNode
from quire.testing.tokenizer import CHAT_TEMPLATE

HELLO = [{"role": "user", "content": "Hello"}]


def render(source: str, messages: object = HELLO, **kwargs: object) -> str:
    return ChatTemplate(source).render(messages, **kwargs)  # type: ignore[arg-type]


def test_messages_tools_and_calls() -> None:
    template = ChatTemplate(CHAT_TEMPLATE, special_tokens={"bos_token": "<|bos|>"})
    call = {"function": {"name": "f", "arguments": {"a": "é"}}}
    text = template.render(
        [*HELLO, {"role": "assistant", "content": None, "tool_calls": [call]}],
        tools=[{"name": "f"}],
    )
    assert text == (
        '<|bos|><|system|>tools: [{"name": "f"}]<|end|><|user|>Hello<|end|><|assistant|>'
        '<tool_call>{"name": "f", "arguments": {"a": "é"}}</tool_call><|end|><|assistant|>'
    )


def test_what_templates_of_models_use() -> None:
    source = (
        "{%- set ns = namespace(last=-1) -%}"
        "{%- for m in messages -%}{%- if loop.index0 > 3 -%}{%- break -%}{%- endif -%}"
        "{%- set ns.last = loop.index0 -%}"
        "{% generation %}{{ m.content | trim }}{% endgeneration %}"
        "{%- endfor -%}[{{ ns.last }}{{ messages | length }}"
        "{{ messages | map(attribute='role') | join(',') }}]"
        "{{ '%' ~ strftime_now('%Y')[:2] ~ x }}{{ messages[0].content.replace('l', 'LL') }}"
    )
    messages = [{"role": "user", "content": " hello "}] * 2
    text = render(source, messages, variables={"x": "!"})
    assert text == "hellohello[12user,user]%20! heLLLLo "


def test_going_on_with_the_last_message() -> None:
    messages = [*HELLO, {"role": "assistant", "content": "The answer "}]
    text = render(CHAT_TEMPLATE, messages, add_generation_prompt=False, continue_final_message=True)
    assert text.endswith("<|assistant|>The answer ")
    stripping = "{% for m in messages %}<{{ m.content | trim }}>{% endfor %}"
    options = {"add_generation_prompt": False, "continue_final_message": True}
    assert render(stripping, messages, **options) == "<Hello><The answer"
    with pytest.raises(InvalidArgument, match="exclude each other"):
        render(CHAT_TEMPLATE, messages, continue_final_message=True)
    with pytest.raises(InvalidArgument, match="changes the last message"):
        render("{{ messages[-1].content | upper }}", messages, **options)


def test_a_template_can_refuse() -> None:
    with pytest.raises(InvalidArgument, match="refuses the messages: only user"):
        render("{{ raise_exception('only user') }}")
    with pytest.raises(InvalidArgument, match="cannot use these messages"):
        render("{{ messages[0].content + 1 }}")
    with pytest.raises(InvalidArgument, match="surrogates not allowed"):
        render("{{ '\\ud800' }}")
    with pytest.raises(InvalidArgument, match="at least one message"):
        render(CHAT_TEMPLATE, [])
    with pytest.raises(ModelFormatError, match="does not compile"):
        render("{% for %}")
    with pytest.raises(ModelFormatError, match="at most"):
        render(" " * 300_000)


@pytest.mark.parametrize(
    "source",
    [
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% set t = 'x' * 90 %}{% for a in t %}{% for b in t %}{% for c in t %}{% for d in t %}"
        "{% endfor %}{% endfor %}{% endfor %}{% endfor %}",
        "{% macro m(n) %}{{ m(n) }}{{ m(n) }}{% endmacro %}{{ m(1) }}",
        "{% set ns = namespace(x='ab') %}{% for i in range(60) %}"
        "{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
        "{% set ns = namespace(x='ab') %}{% for i in range(60) %}"
        "{% set ns.x = ns.x + ns.x %}{% endfor %}",
        "{% set ns = namespace(x=['ab']) %}{% for i in range(60) %}"
        "{% set ns.x = ns.x + ns.x %}{% endfor %}",
        "{{ 'x' * 10000000000 }}",
        "{{ [1] * 10000000000 }}",
        "{{ 9 ** 99999999 }}",
        "{{ 'x'.center(10000000000) }}",
        "{{ '%10000000000d' % 1 }}",
        "{{ '{:10000000000}'.format(1) }}",
        "{% set a = 'x' * 100000 %}{{ a.replace('x', a) }}",
        "{% set a = 'x' * 100000 %}{{ a | replace('x', a) }}",
        "{% set a = 'x' * 10000 %}{{ a.join(a) }}",
        "{% set a = 'x' * 10000 %}{{ a | join(a) }}",
        "{% for a in range(9999) %}{{ 'x' * 99999 }}{% endfor %}",
        "{{ range(100000000000) | list }}",
        "{{ messages | tojson(indent=1000000000) }}",
    ],
)
def test_greedy_templates_are_stopped(source: str) -> None:
    with pytest.raises((InvalidArgument, ModelFormatError)):
        render(source)


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ cycler.__init__.__globals__ }}",
        "{{ lipsum(1000000) }}",
        "{{ raise_exception.__globals__ }}",
        "{{ namespace.__init__.__globals__ }}",
        "{% include 'x' %}",
        "{{ ''|attr('__class__') }}",
        "{{ 'a'.format.__self__.__class__ }}",
    ],
)
def test_hostile_templates_reach_nothing(source: str) -> None:
    with suppress(InvalidArgument, ModelFormatError):
        assert render(source) == ""  # what the sandbox hides is undefined


@pytest.mark.parametrize(
    "use",
    [
        "{{ ns.l }}",
        "{{ ns.l | string | length }}",
        "{{ ns.l | tojson }}",
        "{{ 'x' ~ ns.l }}",
        "{{ ns.l == ns.l }}",
        "{{ ns.l in [1] }}",
    ],
)
def test_a_list_of_shared_lists_is_as_large_as_its_text(use: str) -> None:
    doubled = "{% for _ in range(60) %}{% set ns.l = [ns.l, ns.l] %}{% endfor %}"
    template = ChatTemplate("{% set ns = namespace(l=[1]) %}" + doubled + use)
    with pytest.raises(InvalidArgument, match=r"too many operations|makes a value"):
        template.render([{"role": "user", "content": "hi"}])


@pytest.mark.parametrize(
    "source",
    [
        "{% set ns = namespace(l=[]) %}{% for i in range(60000) %}"
        "{% set ns.l = [ns.l, messages[0].content[i:]] %}{% endfor %}",
        "{% for _ in range(400000) %}{% set a = messages[0].content.upper() %}{% endfor %}",
        "{% for _ in range(400000) %}{% set a = 'y' in messages[0].content %}{% endfor %}",
        "{{ [1] | batch(100000000, 'x') | list | length }}",
        "{{ 1 | round(-99999999) }}",
    ],
)
def test_copies_and_scans_of_long_text_are_charged_by_its_length(source: str) -> None:
    with pytest.raises(InvalidArgument, match=r"too many operations|makes a (value|text)"):
        ChatTemplate(source).render([{"role": "user", "content": "x" * 100_000}])


def test_slices_comparisons_and_literals_keep_their_meaning() -> None:
    template = ChatTemplate(
        "{% set a, b = (1, 2) %}{{ a }}{{ b }}{{ messages[1:] | length }}{{ 'abcd'[::2] }}"
        "{{ 1 < 2 and 'a' in ['a'] }}{{ {'k': [1, 'x']} }}{{ 'abc'[:-1] }}"
    )
    assert template.render([{"role": "user", "content": "hi"}]) == "120acTrue{'k': [1, 'x']}ab"


async def test_a_models_template_is_compiled_once_for_a_thread() -> None:
    """An agent renders for every turn, and compiling takes a hundred times as long."""
    async with LocalNode() as node:
        served = node.models()[0]
    source = "{{ bos_token }}{{ messages[0]['content'] }}"
    first, again, other = (
        replace(served, chat_template=source, special_tokens={"bos_token": bos}) for bos in "aab"
    )
    assert chat_template(first) is chat_template(again)
    assert chat_template(first) is not chat_template(other)
    assert chat_template(first) is not await asyncio.to_thread(chat_template, first)
    assert chat_template(first).render(HELLO) == "aHello"
    assert chat_template(other).render(HELLO) == "bHello"
