"""What a query needs of the node's encoders is checked before any of it runs."""

from __future__ import annotations

from typing import Any, cast

import pytest

from quire.core.errors import InvalidArgument, ModelNotFound
from quire.programs.api import Api
from quire.programs.api.encode import Encoder
from quire.programs.workflow import App, Engine, Node
from quire.programs.workflow.runners import check_encoders

WIDE = Encoder("wide", "embedding", 384, 512)
SMALL = Encoder("small", "embedding", 32, 512)
SCORES = Encoder("scores", "cross_encoder", 1, 512)


class NodeWith:
    """The part of the interface that the check uses."""

    def __init__(self, *served: Encoder) -> None:
        self._served = list(served)

    async def available_encoders(self) -> list[Encoder]:
        return self._served


def indexing(ingested_by: dict[str, Any], searched_by: dict[str, Any]) -> App:
    """Texts are embedded by one engine, the question by another; both go to one store."""
    app = App(
        "indexing",
        [
            Engine("embedding", ingested_by, name="texts_in"),
            Engine("embedding", searched_by, name="question_in"),
            Engine("vectors"),
        ],
    )
    texts = Node("texts_in", {"texts": "texts"}, {"rows": "vectors"}, name="embed")
    question = Node("question_in", {"question": "text"}, {"wanted": "vectors"}, name="ask")
    inputs = {"texts": "texts", "rows": "vectors"}
    config = {"operation": "ingest"}
    ingest = Node("vectors", inputs, {"done": "done"}, config=config, name="ingest")
    config = {"operation": "search"}
    wanted = {"wanted": "vectors"}
    search = Node("vectors", wanted, {"found": "texts"}, config=config, name="search")
    ingest >> search
    app.update_template([texts, question, ingest, search])
    return app


async def check(app: App, *served: Encoder) -> None:
    await check_encoders(cast(Api, NodeWith(*served)), list(app.engines.values()), app.nodes)


async def test_vectors_of_other_dimensions_are_refused_before_any_work() -> None:
    app = indexing({"model": "wide"}, {"model": "small"})
    with pytest.raises(InvalidArgument) as caught:
        await check(app, WIDE, SMALL)
    assert caught.value.message == (
        "search takes vectors of small (32 dimensions), and ingest those of wide (384): use one "
        "embedding model for ingestion and search"
    )
    assert caught.value.details["param"] == "search.inputs.wanted"
    await check(indexing({}, {"model": "small"}), SMALL, WIDE)
    await check(indexing({}, {"model": "wide"}), WIDE)


async def test_an_encoder_of_another_kind_or_name_is_named_with_those_that_there_are() -> None:
    for served, known in (
        ((), "no encoder"),
        ((SCORES,), r"scores \(cross_encoder\)"),
        ((SMALL, SCORES), r"small \(embedding\), scores \(cross_encoder\)"),
    ):
        with pytest.raises(ModelNotFound, match=f"named 'wide', and the node has {known}: load"):
            await check(indexing({"model": "wide"}, {}), *served)
