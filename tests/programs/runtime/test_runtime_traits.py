"""A program that needs what no model has is refused before it begins, with what is missing."""

from __future__ import annotations

import pytest

from quire.core.errors import TraitMissing
from quire.core.ids import EngineId, ModelId
from quire.core.interfaces import ServedModel
from quire.core.traits import ENCODER_TRAITS, NODE_TRAITS, VERSIONS
from quire.programs.runtime.host import check_any_model, check_traits
from quire.testing import FakeEngine, FakeTokenizer

NEEDED = min(ENCODER_TRAITS)
NEEDS = {NEEDED: VERSIONS[NEEDED]}


def model(name: str, *, encodes: bool) -> ServedModel:
    traits = NODE_TRAITS | ENCODER_TRAITS if encodes else NODE_TRAITS
    info = FakeEngine().info
    return ServedModel(
        ModelId(name), EngineId(name), info, FakeTokenizer(), node_traits=frozenset(traits)
    )


def test_what_is_missing_is_named_with_its_program() -> None:
    plain = model("plain", encodes=False)
    with pytest.raises(TraitMissing, match=rf"program 'finds' needs {NEEDED}, and this node has"):
        check_traits("finds", NEEDS, plain)
    check_traits("finds", {}, plain)
    check_traits("finds", NEEDS, model("both", encodes=True))


def test_one_model_that_has_all_is_enough() -> None:
    plain, both = model("plain", encodes=False), model("both", encodes=True)
    check_any_model("finds", NEEDS, [plain, both])
    check_any_model("finds", NEEDS, [])
    with pytest.raises(TraitMissing, match="program 'finds'"):
        check_any_model("finds", NEEDS, [plain, plain])
