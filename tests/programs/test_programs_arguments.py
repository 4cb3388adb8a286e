"""What a program takes and what a launch gives: places, names, types, bounds, errors, words."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Annotated, Any, Literal

import msgspec
import pytest

from quire.core.errors import InvalidArgument
from quire.programs.api import Api
from quire.programs.arguments import bind, check
from quire.programs.parameters import as_text, parameters_of, usage


class Colour(Enum):
    RED = "red"


async def typed(
    api: Api,
    text: str,
    n: Annotated[int, "How many.", msgspec.Meta(ge=1, le=9)] = 3,
    heat: float | None = None,
    items: list[str] = [],  # noqa: B006
    *rest: float,
    mode: Literal["fast", "slow"] = "fast",
    loud: bool = False,
    colour: Colour = Colour.RED,
) -> None:
    """Takes one of everything."""


async def plain(api: Api, first, second="two", third=3) -> None:  # type: ignore[no-untyped-def]
    """Has no annotations."""


async def any_names(api: Api, **names: int) -> None:
    """Takes whatever is named."""


def bound(*args: str, main: Any = typed, **named: str) -> tuple[list[Any], dict[str, Any]]:
    given = bind("p", main, args, named)
    check("p", parameters_of(main), args, named)  # a manifest never refuses what the entry takes
    return given


def test_texts_become_what_the_annotations_say() -> None:
    assert bound("x") == (["x"], {})
    assert bound("5", "5", "0.5", '["a"]', "1", "2.5") == (["5", 5, 0.5, ["a"], 1.0, 2.5], {})
    named = bound("x", n="4", heat="null", mode="slow", loud="True", colour="red")[1]
    assert named == {"n": 4, "heat": None, "mode": "slow", "loud": True, "colour": Colour.RED}


def test_without_annotations_a_default_tells_and_the_rest_is_text() -> None:
    assert bound("1", "2", "3", main=plain) == (["1", "2", 3], {})


def test_names_are_spelled_with_hyphens_too_and_may_be_open() -> None:
    async def main(api: Api, max_tokens: int) -> None: ...

    assert bind("p", main, (), {"max-tokens": "5"}) == ([], {"max_tokens": 5})
    assert bound(main=any_names, a="1", b="2") == ([], {"a": 1, "b": 2})


@pytest.mark.parametrize(
    ("args", "named", "words"),
    [
        ((), {}, r"program 'p' was not given text: it takes TEXT \[N\] \[HEAT\] \[ITEMS\] \[REST"),
        (("x",), {"nn": "1"}, "has no argument nn: it takes TEXT"),
        (("x", "1"), {"n": "1"}, "was given the argument n twice"),
        (("x",), {"rest": "1"}, "has no argument rest"),
        (("x", "many"), {}, "argument n of program 'p' is 'many': give an integer from 1 to 9$"),
        (("x",), {"n": "true"}, "is 'true', as a name without a value is: give an integer"),
        (("x", "10"), {}, "give an integer from 1 to 9$"),
        (("x", "0"), {}, "give an integer from 1 to 9$"),
        (("x", "1.5"), {}, "give an integer"),
        (("x",), {"heat": "hot"}, "argument heat .* give a number$"),
        (("x",), {"mode": "medium"}, "argument mode .* give one of fast, slow$"),
        (("x",), {"loud": "very"}, "argument loud .* give true or false$"),
        (("x",), {"items": "[" * 100_000}, r"argument items .* give JSON \("),
    ],
)
def test_what_does_not_fit_is_named(
    args: tuple[str, ...], named: Mapping[str, str], words: str
) -> None:
    with pytest.raises(InvalidArgument, match=words) as caught:
        bind("p", typed, args, named)
    assert caught.value.details["param"] == "args"
    with pytest.raises(InvalidArgument, match=words):  # the manifest alone says the same
        check("p", parameters_of(typed), args, named)


def test_json_of_another_form_is_found_by_its_type_alone() -> None:
    for text, words in {"{}": "Expected `array`, got `object`", "a": "malformed"}.items():
        check("p", parameters_of(typed), ("x",), {"items": text})
        with pytest.raises(InvalidArgument, match=words):
            bind("p", typed, ("x",), {"items": text})


def test_more_than_it_takes_is_refused_with_what_it_takes() -> None:
    with pytest.raises(
        InvalidArgument, match=r"given 4 positional arguments: it takes FIRST \[SECOND\] \[THIRD\]"
    ):
        bind("p", plain, ("1", "2", "3", "4"))


def test_a_long_text_is_cut_in_the_refusal() -> None:
    with pytest.raises(InvalidArgument) as caught:
        bind("p", typed, ("x", "y" * 1000))
    assert len(caught.value.message) < 200


def test_an_annotation_that_means_nothing_is_named() -> None:
    async def main(api: Api, n: NoSuchType) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    with pytest.raises(InvalidArgument, match="argument n of main: its annotation 'NoSuchType'"):
        parameters_of(main)


def test_parameters_are_data() -> None:
    parameters = parameters_of(typed)
    assert msgspec.json.decode(msgspec.json.encode(parameters), type=type_of(parameters)) == (
        parameters
    )
    n = parameters[1]
    assert (n.help, n.default, n.least, n.most) == ("How many.", "3", 1, 9)
    assert usage(parameters).endswith("[--mode MODE] [--loud] [--colour COLOUR]")
    assert usage(parameters_of(any_names)) == "[--NAME VALUE ...]"


def type_of(parameters: tuple[Any, ...]) -> Any:
    return tuple[type(parameters[0]), ...]  # type: ignore[misc]


@pytest.mark.parametrize(
    ("value", "text"), [("x", "x"), (5, "5"), (["é"], '["é"]'), (True, "true"), (None, "null")]
)
def test_json_travels_as_text(value: object, text: str) -> None:
    assert as_text(value) == text
