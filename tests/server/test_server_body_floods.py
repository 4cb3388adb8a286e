"""A body with a hundred thousand mistakes is refused for the first ones: pydantic makes an object
for each that it finds, and all other requests would wait for that."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from pydantic import BaseModel, TypeAdapter, ValidationError

from quire.server.routes import ROUTERS  # imports every schema
from quire.server.schemas.base import MAX_FIELDS, RequestModel, SparseModel
from quire.server.schemas.generation import ProcessorField
from quire.server.schemas.prompt_fields import Document

NUM = 5000
MOST = MAX_FIELDS
FLOODS = {
    "of a list": [[[]]] * NUM,
    "of an object": {f"\u0663{number}": [] for number in range(NUM)},
    "of objects": [{f"\u0663{number}": [] for number in range(100)}] * (NUM // 100),
}
"""Values that no field takes, with many members."""


def _all(kind: type[BaseModel]) -> Iterator[type[BaseModel]]:
    for one in kind.__subclasses__():
        yield one
        yield from _all(one)


MODELS = sorted(
    {one for one in _all(SparseModel) if one.model_fields}, key=lambda one: one.__name__
)


def num_errors(adapter: TypeAdapter[Any], value: object) -> int:
    try:
        adapter.validate_python(value)
    except ValidationError as exc:
        return exc.error_count()
    return 0


@pytest.mark.parametrize("model", [one for one in MODELS if issubclass(one, RequestModel)])
def test_fields_without_end_are_one_mistake(model: type[BaseModel]) -> None:
    assert ROUTERS
    flood = {f"x{number}": 1 for number in range(NUM)}
    with pytest.raises(ValidationError) as caught:
        model.model_validate(flood)
    (error,) = caught.value.errors()
    assert f"an object has {NUM} fields, at most {MAX_FIELDS} are read" in error["msg"]


@pytest.mark.parametrize("kind", FLOODS)
@pytest.mark.parametrize("model", MODELS)
def test_a_field_without_end_is_a_few_mistakes(model: type[BaseModel], kind: str) -> None:
    adapter: TypeAdapter[Any] = TypeAdapter(model)
    for name, field in model.model_fields.items():
        assert num_errors(adapter, {field.alias or name: FLOODS[kind]}) < 2 * MOST, name


@pytest.mark.parametrize("kind", [Document, ProcessorField])
def test_an_object_that_is_too_long_says_so(kind: Any) -> None:
    flood: dict[str, object] = {f"{number}": [] for number in range(100)}
    value = flood if kind is Document else {"name": "p", "params": flood}
    with pytest.raises(ValidationError, match="at most 32 items after validation, not 100"):
        TypeAdapter(kind).validate_python(value)


@pytest.mark.parametrize("field", ["logit_bias", "metadata", None])
def test_the_answer_names_the_field(http: httpx.Client, field: str | None) -> None:
    flood: dict[str, object] = {f"x{number}": [] for number in range(20_000)}
    body = {"prompt": "a", **(flood if field is None else {field: flood})}
    answer = http.post("/v1/completions", json=body)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["param"] == field
    assert "more problem" not in error["message"]
    assert "at most" in error["message"]
