"""Profiles of encoders: measured by doubling, kept in a file, used by the engines of a workflow."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from workflow_apps import QUERY, advanced

from quire.core.errors import ConfigError
from quire.programs.workflow import App, Engine, Graph, Node, Profile, find_application
from quire.programs.workflow.graphs.primitives import Op
from quire.programs.workflow.passes.stages import MAX_STAGES
from quire.programs.workflow.template.profiles import (
    EncoderProfile,
    ServedProfile,
    decode_encoder_profile,
    doubled,
    encode_encoder_profile,
    use_profiles,
)

SECONDS = {1: 1.0, 2: 1.5, 4: 2.0, 8: 3.9, 16: 5.0}
MEASURED = EncoderProfile(
    model="minilm", kind="embedding", machine="m", date="d", release="r", num_tokens=256,
    times=((1, 1.0), (2, 1.5), (4, 2.0), (8, 3.9)), max_efficient_batch=4,
)  # fmt: skip
RERANKER = ServedProfile("ranker", "rerank", Profile(2, ((2, 1.0),)))


async def seconds(num: int) -> float:
    return SECONDS[num]


async def test_the_batch_doubles_until_throughput_stops_rising() -> None:
    times = await doubled(seconds, 64)
    assert times == MEASURED.times, "8 gain less than a twentieth over 4"
    assert Profile.of(times).max_efficient_batch == 4
    assert await doubled(seconds, 3) == times[:2]


def test_a_file_keeps_a_profile_and_is_checked() -> None:
    text = encode_encoder_profile(MEASURED)
    assert decode_encoder_profile(text, "f") == MEASURED
    assert MEASURED.profile() == Profile(4, MEASURED.times)

    def changed(**fields: Any) -> str:
        return json.dumps({**json.loads(text), **fields})

    for wrong, message in (
        (text[:-9], "f is no profile of an encoder"),
        (changed(kind="llm"), "f is no profile of an encoder"),
        (changed(more=1), "f is no profile of an encoder"),
        (changed(times=[[2, 1.0], [1, 1.0]]), "profile f: profile times"),
        (changed(times=[[0, 1.0], [1, 1.0]]), "profile f: its times are"),
        (changed(max_efficient_batch=8), "is 8, and by its times it is 4"),
    ):
        with pytest.raises(ConfigError, match=message):
            decode_encoder_profile(wrong, "f")


def test_engines_have_the_profiles_of_the_models_that_carry_them_out() -> None:
    served = [
        ServedProfile("large", "llm", Profile(token_s=0.5)),
        ServedProfile("bare", "llm", Profile()),
        ServedProfile("small", "llm", Profile(token_s=0.1)),
        ServedProfile("minilm", "embedding", MEASURED.profile()),
        ServedProfile("other", "embedding", Profile(2)),
        RERANKER,
    ]
    app = use_profiles(find_application("contextual-retrieval"), served)
    found = {name: engine.profile for name, engine in app.engines.items()}
    assert found["embedding"].max_efficient_batch == 4
    assert found["rerank"] == RERANKER.profile
    assert (found["llm"].token_s, found["light"].token_s) == (0.5, 0.1)
    assert found["vectors"] == Profile()
    named = App("named", [Engine("embedding", config={"model": "other"})])
    assert use_profiles(named, served).engines["embedding"].profile == Profile(2)
    given = App("given", [Engine("embedding", profile=Profile(7))])
    assert use_profiles(given, served).engines["embedding"].profile == Profile(7)
    assert use_profiles(find_application("naive-rag"), []).engines["embedding"].profile.assumed


def test_a_graph_is_divided_by_the_profile() -> None:
    measured = ServedProfile("minilm", "embedding", Profile(9, ((9, 1.0),)))
    app = advanced()
    app.engines["embedding"] = replace(app.engines["embedding"], profile=Profile(4, assumed=True))
    assert stages(use_profiles(app, [measured]), QUERY) == [9, 9, 2]


def test_a_batch_has_a_bounded_number_of_stages() -> None:
    app = App("app", [Engine("embedding", profile=Profile(1))])
    embed = Node("embedding", {"t": "texts"}, {"v": "vectors"}, "batchable", name="embed")
    app.update_template([embed])
    assert stages(app, {"t": ["x"] * MAX_STAGES}) == [1] * MAX_STAGES
    found = stages(app, {"t": ["x"] * (10 * MAX_STAGES + 1)})
    assert (len(found), max(found), sum(found)) == (59, 11, 10 * MAX_STAGES + 1)


def stages(app: App, query: dict[str, Any]) -> list[int | None]:
    """Elements of the stages of the first embedding."""
    primitives = Graph.optimize(app, query).e_graph.primitives.values()
    return [one.size for one in primitives if one.op is Op.EMBEDDING and one.node == "embed"]
