"""The fake clock, the fake tokenizer, scripted models."""

from __future__ import annotations

import jinja2
import pytest

from quire.core.decoding import StopSpec
from quire.core.interfaces import Clock, Tokenizer
from quire.testing import FakeEngine, FakeTokenizer, ScriptedModel, VirtualClock, answers, fake_pool
from quire.testing.conformance import TokenizerSuite
from quire.testing.conformance.engine_driver import EngineDriver
from quire.testing.conformance.engine_rows import RowSpec

TOKENIZER = FakeTokenizer()
UNTIL_END = StopSpec(max_tokens=60, token_ids=TOKENIZER.eos_token_ids)


class TestFakeTokenizer(TokenizerSuite):
    def make_tokenizer(self) -> Tokenizer:
        return FakeTokenizer()


def test_chat_template_marks_turns() -> None:
    environment = jinja2.Environment()
    text = environment.from_string(FakeTokenizer.chat_template).render(
        bos_token="<|bos|>",
        messages=[
            {"role": "user", "content": "hi"},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"function": {"name": "add", "arguments": {"a": 1}}}],
            },
            {"role": "tool", "content": "2"},
        ],
        tools=[{"name": "add"}],
        add_generation_prompt=True,
    )
    assert text == (
        '<|bos|><|system|>tools: [{"name": "add"}]<|end|><|user|>hi<|end|>'
        '<|assistant|><tool_call>{"arguments": {"a": 1}, "name": "add"}</tool_call><|end|>'
        "<|tool|>2<|end|><|assistant|>"
    )
    assert TOKENIZER.encode(text)[0] == TOKENIZER.special_id("<|bos|>")


def test_clock() -> None:
    clock = VirtualClock(2.0)
    assert isinstance(clock, Clock)
    clock.advance(0.5)
    clock.advance_to(1.0)
    assert clock.now_s() == 2.5
    clock.advance_to(3.0)
    assert clock.now_s() == 3.0
    with pytest.raises(ValueError, match="go back"):
        clock.advance(-1)


class TestScriptedModel:
    def driver(self, model: ScriptedModel) -> EngineDriver:
        return EngineDriver(FakeEngine(fake_pool(page_size=4), script=model))

    def test_says_what_it_is_told(self) -> None:
        model = ScriptedModel(lambda prompt: f"you said {prompt}", TOKENIZER)
        prompt = TOKENIZER.encode("<|user|>hé<|end|>")
        decoded = self.driver(model).decode(range(20), prompt, UNTIL_END, num_steps=3)
        assert TOKENIZER.decode(decoded.tokens) == "you said <|user|>hé<|end|>"
        assert model.prompts == ["<|user|>hé<|end|>"]

    def test_the_end_of_text_is_repeated_for_ever(self) -> None:
        model = ScriptedModel(answers(["ab"]), TOKENIZER)
        end = TOKENIZER.eos_token_ids[-1]
        decoded = self.driver(model).decode(range(20), [70], StopSpec(max_tokens=7))
        assert decoded.tokens == [*b"ab", end, end, end, end, end]
        assert model.prompts == ["F"]

    def test_single_forwards_continue_the_answer(self) -> None:
        model = ScriptedModel(answers(["one", "two"]), TOKENIZER)
        driver, said = self.driver(model), []
        holder, tokens = driver.holder(range(4)), list(b"go")
        for index in range(3):
            start = 0 if index == 0 else 1 + index
            after = driver.prefill(holder, tokens[start:], start=start)
            tokens.append(int(after.argmax()))
            said.append(tokens[-1])
        assert bytes(said) == b"one"
        (after,) = driver.forward([RowSpec(None, list(b"stop"), range(4))])
        assert int(after.argmax()) == ord("t")
        assert model.prompts == ["go", "stop"]

    def test_the_last_answer_repeats(self) -> None:
        answer = answers(["a", "b"])
        assert [answer("") for _ in range(4)] == ["a", "b", "b", "b"]
