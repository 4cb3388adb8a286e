"""Constrained decodes follow their grammar, end with it, and fail alone when it cannot be used."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from engine_checkpoints import EOS, VOCAB_SIZE
from engine_driver import Driver, Output

from quire.core.batch_result import SequenceEnd
from quire.core.decoding import GrammarSpec, Processor, SamplerSpec, StopSpec
from quire.core.errors import GrammarError
from quire.engine.sampling.grammar import GrammarCompiler, Vocabulary
from quire.engine.sampling.grammar_limits import MAX_SOURCE_BYTES
from quire.engine.tokenizer import load_tokenizer

MakeDriver = Callable[..., Driver]

SCHEMA = {
    "type": "object",
    "properties": {"name": {"enum": ["ann", "bob"]}, "count": {"type": "integer", "maximum": 99}},
    "required": ["name", "count"],
    "additionalProperties": False,
}
SCHEMA_GRAMMAR = GrammarSpec("json_schema", json.dumps(SCHEMA))


def decode(
    driver: Driver,
    grammar: GrammarSpec,
    *,
    num_steps: int = 4,
    seed: int | None = None,
    stop: StopSpec | None = None,
) -> Output:
    sampler = SamplerSpec() if seed is None else SamplerSpec(greedy=False, seed=seed)
    blocks = list(range(driver.num_pages(100)))
    started = driver.open(
        0, [5, 6], blocks, sampler=sampler, stop=stop or StopSpec(max_tokens=80), grammar=grammar
    )
    return driver.decode([started], num_steps=num_steps)[0]


def text_of(path: Path, output: Output) -> str:
    tokenizer = load_tokenizer(str(path))
    return b"".join(tokenizer.token_bytes(token) for token in output.tokens).decode()


@pytest.mark.parametrize("seed", [None, 1, 2, 3])
def test_json_follows_its_schema(
    seed: int | None, make_driver: MakeDriver, checkpoint: Callable[[str], Path]
) -> None:
    stop = StopSpec(max_tokens=90, token_ids=(EOS,))
    outputs = [
        decode(make_driver(), SCHEMA_GRAMMAR, num_steps=n, seed=seed, stop=stop) for n in (1, 5)
    ]
    assert outputs[0].tokens == outputs[1].tokens
    if outputs[0].end is SequenceEnd.MAX_TOKENS:  # a random model may write spaces for ever
        assert set(text_of(checkpoint("llama"), outputs[0])) & set(" \n\t")
        return
    assert outputs[0].end in (SequenceEnd.GRAMMAR, SequenceEnd.STOP_TOKEN)
    value = json.loads(text_of(checkpoint("llama"), outputs[0]))
    assert value["name"] in ("ann", "bob")
    assert value["count"] <= 99


@pytest.mark.parametrize(
    ("grammar", "pattern"),
    [
        (GrammarSpec("regex", "(red|green) [0-9]{3}"), r"(red|green) [0-9]{3}"),
        (GrammarSpec("lark", 'start: "p" mid "q"\nmid: "xyz" | "w" "v"'), r"p(xyz|wv)q"),
    ],
    ids=["regex", "lark"],
)
def test_a_sequence_without_other_stops_ends_with_the_grammar(
    grammar: GrammarSpec,
    pattern: str,
    make_driver: MakeDriver,
    checkpoint: Callable[[str], Path],
) -> None:
    for seed in (None, 4):
        output = decode(make_driver(), grammar, seed=seed)
        assert output.end is SequenceEnd.GRAMMAR
        assert re.fullmatch(pattern, text_of(checkpoint("llama"), output))


def test_a_grammar_is_rebuilt_from_history(make_driver: MakeDriver) -> None:
    """Preempted within the constraint, the sequence continues unchanged."""
    grammar = GrammarSpec("regex", "(alpha|beta)-[a-f]{6}-(one|two)")
    whole = decode(make_driver(), grammar)
    cut = len(whole.tokens) // 2
    driver = make_driver()
    prompt = [5, 6, *whole.tokens[:cut]]
    blocks = list(range(driver.num_pages(100)))
    stop = StopSpec(max_tokens=80)
    resumed = driver.open(0, prompt, blocks, stop=stop, grammar=grammar, num_generated=cut)
    assert driver.decode([resumed])[0].tokens == whole.tokens[cut:]


def test_where_only_the_end_could_follow_too_early_the_row_fails(
    make_driver: MakeDriver, checkpoint: Callable[[str], Path]
) -> None:
    """After "ab" only "c" may follow, which is banned, or the end, which is too early."""
    tokenizer = load_tokenizer(str(checkpoint("llama")))
    (banned,) = tokenizer.encode("c")
    driver = make_driver()
    started = driver.open(
        0,
        [5, 6],
        list(range(10)),
        sampler=SamplerSpec((Processor("bad_words", {"tokens": [banned]}),)),
        stop=StopSpec(max_tokens=20, min_tokens=15, token_ids=(EOS,)),
        grammar=GrammarSpec("regex", "abc?"),
    )
    output = driver.decode([started])[0]
    assert text_of(checkpoint("llama"), output) == "ab"
    assert output.end is SequenceEnd.FAILED


def test_samplers_and_grammars_meet(
    make_driver: MakeDriver, checkpoint: Callable[[str], Path]
) -> None:
    """A bias cannot break the constraint; a ban decides within it."""
    tokenizer = load_tokenizer(str(checkpoint("llama")))
    (yes,) = tokenizer.encode("y")
    driver = make_driver()
    for processors, wanted in [
        ((Processor("logit_bias", {"tokens": [9, yes], "biases": [500.0, 300.0]}),), "y"),
        ((Processor("bad_words", {"tokens": [yes]}),), "n"),
    ]:
        started = driver.open(
            0,
            [5, 6],
            list(range(10)),
            sampler=SamplerSpec(processors),
            grammar=GrammarSpec("regex", "y|n"),
        )
        assert text_of(checkpoint("llama"), driver.decode([started])[0]) == wanted


@pytest.mark.parametrize(
    ("kind", "source", "part"),
    [
        ("json_schema", "{bad", "JSON schema is not valid JSON: .*: line 1 column 2"),
        ("json_schema", '{"type": "null"}}, {"json_schema": {}', "JSON schema is not valid JSON"),
        ("json_schema", "[" * 100_000, "JSON schema is not valid JSON"),
        ("json_schema", "[1]", "object or boolean"),
        ("json_schema", "false", "Unsatisfiable"),
        ("json_schema", '{"type":"integer","minimum":5,"maximum":1}', "minimum"),
        ("json_schema", '{"$ref":"http://example.com/x.json"}', "Resource"),
        ("regex", "(", "regular expression cannot be compiled"),
        ("regex", r"(a)\1", "backreferences"),
        ("regex", "\ud800", "not valid Unicode"),
        ("regex", "a" * (MAX_SOURCE_BYTES + 1), "at most"),
        ("lark", "start: nope", "unknown name"),
        ("lark", "", "Lark grammar cannot be compiled"),
    ],
)
def test_bad_grammars_are_refused(
    kind: str, source: str, part: str, checkpoint: Callable[[str], Path]
) -> None:
    tokenizer = load_tokenizer(str(checkpoint("llama")))
    compiler = GrammarCompiler(Vocabulary(tokenizer, VOCAB_SIZE))
    with pytest.raises(GrammarError, match=part):
        compiler.compile(GrammarSpec(kind, source))  # type: ignore[arg-type]


def test_an_exploding_regex_fails_alone(make_driver: MakeDriver) -> None:
    driver = make_driver()
    plain = driver.decode([driver.open(0, [5, 6, 7], list(range(8)))])[0]
    exploding = GrammarSpec("regex", "((a{1000}){1000}){1000}")
    pair = [
        driver.open(0, [5, 6, 7], list(range(8))),
        driver.open(1, [5, 6, 7], list(range(8, 16)), grammar=exploding),
    ]
    outputs = driver.decode(pair)
    assert outputs[0].tokens == plain.tokens
    assert outputs[1].end is SequenceEnd.FAILED


COSTLY = GrammarSpec("regex", "(x{1,100}){1,100}")
"""After a hundred letters there are a hundred ways to parse them, each with its own
continuations."""


def test_a_mask_that_takes_too_much_work_fails_alone(make_driver: MakeDriver) -> None:
    driver = make_driver()
    plain = driver.decode([driver.open(0, [5, 6, 7], list(range(8)))])[0]
    on_and_on = StopSpec(max_tokens=280, min_tokens=280, token_ids=(EOS,))
    pair = [
        driver.open(0, [5, 6, 7], list(range(8))),
        driver.open(1, [5, 6, 7], list(range(8, 80)), stop=on_and_on, grammar=COSTLY),
        driver.open(2, [5, 6, 7], list(range(80, 90)), grammar=GrammarSpec("regex", "[a-f]{9}")),
    ]
    outputs = driver.decode(pair)
    assert outputs[1].end is SequenceEnd.FAILED
    assert len(outputs[1].tokens) > 50
    assert outputs[0].tokens == plain.tokens
    assert outputs[2].end is SequenceEnd.GRAMMAR
