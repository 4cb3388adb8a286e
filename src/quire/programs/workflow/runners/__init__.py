"""Who carries out primitives: one runner for each engine of an application."""

from __future__ import annotations

from quire.core.errors import InvalidArgument
from quire.programs.api import Api, Model
from quire.programs.workflow.engines import Engine
from quire.programs.workflow.runners.encoding import (
    ENCODER_KINDS,
    EncoderRunner,
    check_encoders,
)
from quire.programs.workflow.runners.local import DocumentRunner, ToolRunner, VectorRunner
from quire.programs.workflow.runners.model import ModelRunner, Streamed
from quire.programs.workflow.scheduler import Runner
from quire.programs.workflow.vectors import QueryVectors


def runner_of(engine: Engine, api: Api, streamed: Streamed | None = None) -> Runner:
    """The runner of ``engine`` for one query. ``streamed``: answers whose text is told while it is
    written.

    Raises:
        InvalidArgument: the node does not serve the model that the engine names.
    """
    match engine.kind:
        case "llm":
            return ModelRunner(_model(engine, api), streamed)
        case "embedding" | "rerank":
            return EncoderRunner(api, engine.config.get("model"))
        case "vectors":
            return VectorRunner(QueryVectors(api))
        case "tool":
            return ToolRunner(engine.functions)
    return DocumentRunner()


def _model(engine: Engine, api: Api) -> Model:
    wanted = engine.config.get("model")
    models = api.available_models()
    if engine.config.get("light") and models:
        whole = [model for model in models if model.served.adapter is None]
        return min(whole or models, key=lambda model: model.served.info.num_parameters)
    for model in models:
        if wanted is None or model.id == wanted:
            return model
    served = ", ".join(model.id for model in models) or "none"
    raise InvalidArgument(
        f"engine {engine.name!r} names the model {wanted!r}; the node serves {served}: name one of "
        "them",
        param=f"{engine.name}.model",
    )


__all__ = ["ENCODER_KINDS", "Streamed", "check_encoders", "runner_of"]
