"""The shipped directory: what the template writes, how text splits, and that the model works."""

import json
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from jinja2.exceptions import TemplateError

from training.corpus import functions, react
from training.corpus.document import BOS, Split, call_text
from training.corpus.function_catalog import Function, Parameter
from training.corpus.words import made_up
from training.decoding import Decoder
from training.export import DEFAULT_TARGET, TEMPLATE
from training.scoring import judge_react

transformers = pytest.importorskip("transformers")


@cache
def tokenizer() -> Any:
    return transformers.AutoTokenizer.from_pretrained(DEFAULT_TARGET)


@cache
def decoder() -> Decoder:
    return Decoder(DEFAULT_TARGET)


def render(messages: list[dict[str, Any]], **options: Any) -> str:
    text: str = tokenizer().apply_chat_template(messages, tokenize=False, **options)
    return text


def schema(function: Function) -> dict[str, Any]:
    """A listed function as an OpenAI tool."""
    properties = {
        p.name: {"type": p.type, **({"enum": list(p.choices)} if p.choices else {})}
        for p in function.parameters
    }
    required = [p.name for p in function.parameters if p.required]
    parameters = {"type": "object", "properties": properties, "required": required}
    return {"type": "function", "function": {"name": function.name, "parameters": parameters}}


def call(name: str, arguments: object) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "arguments": arguments}}


WEATHER = Function(
    "get_weather",
    (
        Parameter("city"),
        Parameter("unit", choices=("celsius", "fahrenheit")),
        Parameter("days", "integer", required=False),
    ),
)


def test_template_spells_a_whole_tool_loop() -> None:
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "Be nice."},
        {"role": "user", "content": [{"type": "text", "text": "Weather in Oslo?"}]},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [call("f", {"a": 1}), call("g", "{}")],
        },
        {"role": "tool", "content": '{"temperature": 3}'},
        {"role": "assistant", "content": "It is cold."},
    ]
    assert render(messages, tools=[schema(WEATHER), schema(Function("now", ()))]) == (
        "<|bos|><|system|>Be nice.\nFunctions:\n"
        'get_weather(city: string, unit: "celsius"|"fahrenheit", days?: integer)\nnow()<|end|>'
        "<|user|>Weather in Oslo?<|end|>"
        '<|assistant|><tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>\n'
        '<tool_call>{"name": "g", "arguments": {}}</tool_call><|end|>'
        '<|tool|>{"temperature": 3}<|end|><|assistant|>It is cold.<|end|>'
    )


def test_functions_make_a_system_turn_of_their_own() -> None:
    text = render(
        [{"role": "user", "content": "Hi"}], tools=[schema(WEATHER)], add_generation_prompt=True
    )
    listing = f"Functions:\n{WEATHER.render()}"
    assert text == f"<|bos|><|system|>{listing}<|end|><|user|>Hi<|end|><|assistant|>"


def test_template_writes_what_the_corpus_teaches() -> None:
    rng = Random(3)
    for _ in range(20):
        document = functions.sample_unseen(rng, Split.TRAIN)
        listing, _, rest = document.prompt.partition("<|end|><|user|>")
        request = rest.removesuffix("<|end|><|assistant|>")
        name = json.loads(document.answer.removeprefix("<tool_call>")[: -len("</tool_call>")])
        messages: list[dict[str, Any]] = [
            {"role": "system", "content": listing.removeprefix("<|bos|><|system|>")},
            {"role": "user", "content": request},
            {"role": "assistant", "tool_calls": [call(name["name"], name["arguments"])]},
        ]
        first = "".join(segment.text for segment in document.segments[:2])
        assert render(messages) == BOS + first
        assert document.answer == call_text(name["name"], name["arguments"])


def test_a_final_message_can_be_continued() -> None:
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello! How"},
    ]
    text = render(messages, continue_final_message=True)
    assert text == "<|bos|><|user|>Hi<|end|><|assistant|>Hello! How"


@pytest.mark.parametrize(
    "message",
    [
        {"role": "developer", "content": "x"},
        {"role": "user", "content": [{"type": "image", "url": "x"}]},
    ],
)
def test_template_refuses_what_the_model_cannot_read(message: dict[str, Any]) -> None:
    with pytest.raises(TemplateError, match="quire-mini"):
        render([message])


def test_template_file_and_directory_agree() -> None:
    assert (DEFAULT_TARGET / "chat_template.jinja").read_text() == TEMPLATE.read_text()
    config = json.loads((DEFAULT_TARGET / "tokenizer_config.json").read_text())
    assert config["chat_template"] == TEMPLATE.read_text().rstrip("\n")


@pytest.mark.parametrize("text", ["naïve café 日本\n  x", '{"a": [1, 2.5]}', "Don't!", "a\tb\r\n"])
def test_any_text_survives_the_tokenizer(text: str) -> None:
    assert tokenizer().decode(tokenizer()(text)["input_ids"]) == text


def test_made_up_words_split_alike_everywhere() -> None:
    rng, pieces = Random(5), decoder().tokenizer
    for _ in range(50):
        word = made_up(rng, Split.TRAIN)
        alone = pieces.encode(word).tokens
        for before, after in [(" ", " "), ('"', '"'), ("(", ","), ("_", "_")]:
            tokens = pieces.encode(before + word + after).tokens
            assert tokens[1:-1] == alone


def test_only_call_marks_survive_without_special_tokens() -> None:
    text = "<|bos|><|user|>x<|end|><|assistant|><tool_call>{}</tool_call><|end|>"
    ids = tokenizer()(text)["input_ids"]
    assert tokenizer().decode(ids, skip_special_tokens=True) == "x<tool_call>{}</tool_call>"


def test_the_directory_is_small_and_complete() -> None:
    names = {path.name for path in DEFAULT_TARGET.iterdir()}
    assert {"config.json", "tokenizer.json", "model.safetensors", "README.md", "LICENSE"} <= names
    assert sum(path.stat().st_size for path in Path(DEFAULT_TARGET).iterdir()) < 16 * 2**20


def test_transformers_and_the_plain_decoder_say_the_same() -> None:
    model = transformers.AutoModelForCausalLM.from_pretrained(DEFAULT_TARGET, dtype=torch.float32)
    prompts = ["What is 48213 + 977?", "Who are you?", "Repeat: Zaibrekon 4711"]
    texts = [render([{"role": "user", "content": p}], add_generation_prompt=True) for p in prompts]
    for prompt, reply in zip(texts, decoder().complete(texts, 80), strict=True):
        inputs = tokenizer()(prompt, return_tensors="pt")
        output = model.generate(**inputs, max_new_tokens=80)[0, inputs["input_ids"].shape[1] :]
        assert tokenizer().decode(output, skip_special_tokens=True) == reply


def test_the_model_adds() -> None:
    prompt = render(
        [{"role": "user", "content": "What is 48213 + 977?"}], add_generation_prompt=True
    )
    assert decoder().complete([prompt], 120) == [
        "48213+00977\n3+7+0=10\n1+7+1=09\n2+9+0=11\n8+0+1=09\n4+0+0=04\nAnswer: 49190"
    ]


def test_the_model_uses_real_tools() -> None:
    rng = Random(11)
    right = judge_react(decoder(), [react.sample(rng, Split.HELD_OUT) for _ in range(10)])
    assert sum(right) >= 8
