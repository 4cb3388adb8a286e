"""Outputs that a grammar allows satisfy its schema, by an independent validator; schemas that
cannot be enforced are refused with the place."""

from __future__ import annotations

import json
import random
from typing import Any

import jsonschema_rs
import pytest

from quire.core.decoding import GrammarSpec
from quire.core.errors import GrammarError
from quire.engine.sampling.grammar import GrammarCompiler, GrammarMatcher, Vocabulary
from quire.engine.sampling.json_schema import (
    ANNOTATIONS,
    OBEYED,
    REFUSED,
    REWRITTEN,
    read_schema,
    read_schemas_in_lark,
)

DRAFT = "https://json-schema.org/draft/2020-12/schema"
COMPILER = GrammarCompiler(Vocabulary())
"""A token for each byte."""

PLAIN = frozenset(range(33, 127))
CLOSING = frozenset(b'"}],')

FORMATS = (
    *("date-time", "time", "date", "duration", "email", "hostname"),
    *("ipv4", "ipv6", "uuid", "uri"),
)

SCHEMAS: list[dict[str, Any]] = [
    {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
    {"type": "number", "maximum": 0.5, "allOf": [{"exclusiveMinimum": 0}]},
    {"type": "number", "multipleOf": 0.3, "minimum": 1, "maximum": 2},
    {"type": "integer", "minimum": 2**53 + 1, "maximum": 2**53 + 9},
    {"type": "number", "exclusiveMinimum": 1, "exclusiveMaximum": 1.5},
    {"type": "number", "minimum": -1.5, "exclusiveMaximum": -1},
    {"type": "integer", "exclusiveMinimum": 2**53, "maximum": 2**53 + 9},
    {"type": "integer", "multipleOf": 7, "exclusiveMaximum": 100},
    {"type": "integer", "format": "uint8"},
    {"type": "string", "minLength": 2.0, "maxLength": 4},
    {"type": "string", "pattern": "^[^a]\\d{2}\\s$", "maxLength": 9},
    *({"type": "string", "format": name} for name in FORMATS),
    {"type": "string", "format": "date", "pattern": "^2"},
    {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 3},
    {"type": "array", "prefixItems": [{"const": 1}, {"type": "null"}], "items": False},
    {"type": "array", "uniqueItems": True, "maxItems": 1},
    {"type": "object", "properties": {"a": {"type": "null"}}, "required": ["a", "b"]},
    {"type": "object", "required": ["a"], "minProperties": 2},
    {"type": "object", "properties": {"a": {"type": "null"}, "b": {"type": "null"}}}
    | {"minProperties": 1, "additionalProperties": False},
    {"type": "object", "patternProperties": {"^[ab]$": {"type": "null"}}}
    | {"additionalProperties": False, "maxProperties": 1},
    {"type": "object", "propertyNames": {"type": "string"}, "additionalProperties": False},
    {"enum": [1, 7, "a", [1], {"b": 2.5}], "minimum": 5, "minItems": 2},
    {"const": {"a": [1, 2.5, None, "x\n\u00e9"]}},
    {"anyOf": [{"exclusiveMinimum": 2}, {"type": "null"}], "type": ["number", "null"]},
    {"oneOf": [{"type": "null"}, {"type": "boolean"}]},
    {"$ref": "#/$defs/a", "maximum": 3, "$defs": {"a": {"exclusiveMinimum": 2, "type": "number"}}},
    {"$ref": "#x", "$defs": {"a": {"$anchor": "x", "type": "null"}}},
]


def walk(matcher: GrammarMatcher, draw: random.Random, num_tokens: int = 160) -> bytes | None:
    """Random allowed tokens, with closing ones more likely over time; None if the output did not
    end."""
    text = bytearray()
    while not matcher.finished:
        mask = matcher.mask()
        allowed = {i for i in range(256) if mask[i // 8] >> i % 8 & 1}
        if not allowed:  # only the end may follow
            return bytes(text)
        if len(text) > num_tokens:
            return None
        choices = sorted(allowed & PLAIN or allowed)
        closing = sorted(allowed & CLOSING)
        if closing and draw.random() < 0.2 + len(text) / 80:
            choices = closing
        token = draw.choice(choices)
        matcher.consume(token)
        text.append(token)
        if draw.random() < 0.3 and not matcher.finished and may_end(matcher):
            return bytes(text)
    return bytes(text)


def may_end(matcher: GrammarMatcher) -> bool:
    """The end of the text is the token after those of the bytes."""
    return any(matcher.mask()[256 // 8 :])


@pytest.mark.parametrize("schema", SCHEMAS, ids=[json.dumps(one)[:70] for one in SCHEMAS])
def test_outputs_that_a_grammar_allows_satisfy_its_schema(schema: dict[str, Any]) -> None:
    validator = jsonschema_rs.validator_for({"$schema": DRAFT, **schema}, validate_formats=True)
    compiled = COMPILER.compile(GrammarSpec("json_schema", json.dumps(schema)))
    texts = {walk(compiled.fork(), random.Random(seed)) for seed in range(25)} - {None}
    assert texts
    for text in texts:
        assert text is not None
        assert validator.is_valid(json.loads(text)), text


BOUNDS = [-7.25, -3, -1.5, -1, -0.5, 0, 0.25, 0.5, 1, 1.05, 3, 3.5, 9, 10, 12]


@pytest.mark.parametrize("kind", ["number", "integer"])
def test_no_bound_is_passed(kind: str) -> None:
    """All four keywords at and between integers, with texts of numbers close to them."""
    draw = random.Random(5)
    for _ in range(60):
        low, high = sorted(draw.sample(BOUNDS, 2))
        if kind == "integer" and high - low < 2:
            continue  # possibly no value is valid
        schema = {
            "type": kind,
            draw.choice(["minimum", "exclusiveMinimum"]): low,
            draw.choice(["maximum", "exclusiveMaximum"]): high,
        }
        near = {round(bound + step, 6) for bound in (low, high) for step in (-1, -0.01, 0, 0.01, 1)}
        validator = jsonschema_rs.validator_for(schema)
        compiled = COMPILER.compile(GrammarSpec("json_schema", json.dumps(schema)))
        for number in near:
            fitting = validator.is_valid(number)
            written = f"{number:.6g}"
            assert fits(compiled, written) == fitting, (schema, written)
            assert fitting or not fits(compiled, f"{number:.2f}"), schema


def fits(compiled: GrammarMatcher, text: str) -> bool:
    matcher = compiled.fork()
    try:
        for token in text.encode():
            matcher.consume(token)
    except GrammarError:
        return False
    return matcher.finished or may_end(matcher)


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"properties": {"age": {"uniqueItems": True}}}, "#/properties/age: uniqueItems: answers "),
        ({"properties": {"a/b~": {"not": {}}}}, "#/properties/a~1b~0: not: answers cannot"),
        ({"items": {"format": "color"}}, '#/items: format: "color" is not known: write one of'),
        ({"type": "string", "format": "int32"}, '#: format: "int32" is not known'),
        ({"anyOf": [{}, {"minlength": 1}]}, "#/anyOf/1: minlength: no keyword of JSON Schema: "),
        ({"wdth": 1}, "#: wdth: no keyword of JSON Schema: leave it out"),
        (
            {"prefixItems": [{}], "additionalItems": False},
            "#: additionalItems: not read beside prefixItems: write items",
        ),
        ({"minProperties": 2}, "#: minProperties: answers cannot be held to more than 1 here"),
        (
            {"propertyNames": {"pattern": "a"}},
            "#: propertyNames: answers cannot be held to it: write patternProperties",
        ),
        ({"$defs": {"a": {"minimum": 1e19}}}, "#/$defs/a: minimum: 1e+19 is beyond 1e+18"),
        ({"maximum": -(10**400)}, "#: maximum: -inf is beyond -1e+18"),
        ({"minimum": "1"}, '#/minimum: must be a number, not "1"'),
        ({"maxLength": True}, "#/maxLength: must be a whole number of 0 or more, not true"),
        ({"type": ["string", "text"]}, "#/type: must be one of null, boolean, integer"),
        ({"enum": [[2**53 + 1]]}, "#/enum: 9007199254740993 is no double-precision number"),
        ({"allOf": [5]}, "#/allOf/0: a schema is an object or boolean, not 5"),
    ],
)
def test_keywords_that_cannot_be_enforced_are_refused_with_their_place(
    schema: dict[str, Any], message: str
) -> None:
    with pytest.raises(GrammarError) as caught:
        read_schema(json.dumps(schema))
    assert caught.value.message.startswith(message)


def test_a_refused_value_is_quoted_up_to_80_characters() -> None:
    def quoted(length: int) -> str:
        with pytest.raises(GrammarError) as caught:
            read_schema(json.dumps({"minimum": "1" * length}))
        return caught.value.message.removeprefix("#/minimum: must be a number, not ")

    assert quoted(78) == f'"{"1" * 78}"'
    assert quoted(79) == f'"{"1" * 76}...'


@pytest.mark.parametrize("keyword", sorted(REFUSED))
def test_refused_keywords_are_left_out_of_lenient_schemas(keyword: str) -> None:
    schema = {"type": "null", keyword: {}}
    with pytest.raises(GrammarError, match=f": {REFUSED[keyword]}".replace("$", r"\$")):
        read_schema(json.dumps(schema))
    lenient = read_schema(json.dumps({**schema, "x-guidance": {"lenient": True}}))
    assert keyword not in json.loads(lenient)


def test_each_keyword_of_the_draft_has_one_treatment() -> None:
    treatments = [OBEYED, REWRITTEN, ANNOTATIONS, frozenset(REFUSED)]
    assert sum(map(len, treatments)) == len(frozenset().union(*treatments))
    assert frozenset().union(*treatments) >= KEYWORDS


KEYWORDS = frozenset(
    """
    $id $schema $ref $anchor $dynamicRef $dynamicAnchor $vocabulary $comment $defs
    prefixItems items contains additionalProperties properties patternProperties
    dependentSchemas propertyNames if then else allOf anyOf oneOf not unevaluatedItems
    unevaluatedProperties type const enum multipleOf maximum exclusiveMaximum minimum
    exclusiveMinimum maxLength minLength pattern maxItems minItems uniqueItems maxContains
    minContains maxProperties minProperties required dependentRequired title description
    default deprecated readOnly writeOnly examples format contentEncoding contentMediaType
    contentSchema
    """.split()  # noqa: SIM905
)
"""The keywords of draft 2020-12, all vocabularies."""


def test_annotations_and_draft_4_bounds_are_understood() -> None:
    schema = dict.fromkeys(ANNOTATIONS, 1) | {"x-order": 1, "minimum": 1, "exclusiveMinimum": True}
    assert json.loads(read_schema(json.dumps(schema)))["minimum"] == pytest.approx(1)
    assert json.loads(read_schema(json.dumps(schema)))["minimum"] > 1
    assert json.loads(read_schema('{"maximum": 1, "exclusiveMaximum": false}')) == {"maximum": 1}


def test_integers_of_64_bits_are_bounded() -> None:
    schema = {"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1}
    compiled = COMPILER.compile(GrammarSpec("json_schema", json.dumps(schema)))
    assert fits(compiled, "-9223372036854774784")
    assert not fits(compiled, "-9223372036854775809")
    assert not fits(compiled, "9223372036854775808")


@pytest.mark.parametrize("bits", [8, 16, 32])
def test_a_format_of_integers_bounds_them_to_its_width(bits: int) -> None:
    bounds = {
        f"uint{bits}": (0, 2**bits - 1),
        f"int{bits}": (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1),
    }
    for name, (least, most) in bounds.items():
        schema = {"type": "integer", "format": name}
        compiled = COMPILER.compile(GrammarSpec("json_schema", json.dumps(schema)))
        near = range(least - 1, least + 2), range(most - 1, most + 2)
        fitting = [number for part in near for number in part if fits(compiled, str(number))]
        assert fitting == [least, least + 1, most - 1, most], name


def test_schemas_in_lark_are_read_and_the_rest_is_kept() -> None:
    rest = 'start: a | "%json {" | /%json {/ // %json {\n'
    source = rest + 'a: %json {\n  "exclusiveMinimum": 5, "title": "a"\n} "b"\n'
    read = read_schemas_in_lark(source)
    assert read.startswith(rest + 'a: %json {"minimum": 5.0000')
    assert read.endswith('} "b"\n')
    with pytest.raises(GrammarError, match="#: uniqueItems: answers cannot be held to it"):
        read_schemas_in_lark('start: %json {"uniqueItems": true}')
    with pytest.raises(GrammarError, match="behind %json is not valid JSON"):
        read_schemas_in_lark("start: %json {")
