"""The runners of primitives, one for each engine of an application."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from quire.core.errors import InvalidArgument
from quire.programs.api import Api, Model
from quire.programs.api.encode import EncoderBatches
from quire.programs.workflow.engines.engine import Engine
from quire.programs.workflow.engines.tools_elsewhere import McpTools, ProgramTool
from quire.programs.workflow.execution.scheduler import PrimitiveRunner
from quire.programs.workflow.execution.vectors import QueryVectors
from quire.programs.workflow.graphs.primitives import PREFILLS, Primitive
from quire.programs.workflow.runners.calls import StreamedAnswers
from quire.programs.workflow.runners.encoding import (
    ENCODER_KINDS,
    EncoderRunner,
    check_encoders,
    check_kinds,
)
from quire.programs.workflow.runners.local import DocumentRunner, ToolRunner, VectorRunner
from quire.programs.workflow.runners.model import LanguageModelRunner
from quire.programs.workflow.runners.remote import RemoteRunner
from quire.programs.workflow.runners.search import SearchRunner, check_has_search, check_search
from quire.programs.workflow.runners.tools import McpToolRunner, ProgramRunner, check_tools
from quire.programs.workflow.sharing import Sharing
from quire.programs.workflow.template.function_threads import FunctionThreads
from quire.programs.workflow.template.keys import key_of


def runner_of(
    engine: Engine,
    api: Api,
    primitives: Iterable[Primitive],
    streamed: StreamedAnswers | None,
    sharing: Sharing,
    batches: dict[str, EncoderBatches],
    threads: FunctionThreads,
) -> PrimitiveRunner:
    """Make the runner of ``engine`` for those of ``primitives`` that name it. ``streamed``: answers
    whose text is reported while it is written. ``sharing``: shares the pure primitives.
    ``batches``: counts the batches of encoders, by the primitive's id. ``threads``: run functions.

    Raises:
        InvalidArgument: the node does not serve a model that the engine or a component names.
        ConfigError: the key of a model or tool behind HTTP is not set.
    """
    match engine.kind:
        case "llm" if engine.endpoint is not None:
            key = key_of(engine, engine.endpoint.base_url)
            return RemoteRunner(
                engine.endpoint, streamed, sleep=api.sleep, sharing=sharing, key=key
            )
        case "llm":
            return LanguageModelRunner(_models(engine, api, primitives), streamed, sharing)
        case "embedding" | "rerank":
            return EncoderRunner(api, engine.config.get("model"), batches)
        case "vectors":
            return VectorRunner(QueryVectors(api))
        case "search":
            return SearchRunner(api)
        case "tool" if isinstance(engine.tools_elsewhere, McpTools):
            key = key_of(engine, engine.tools_elsewhere.server)
            return McpToolRunner(api, engine.tools_elsewhere, key)
        case "tool" if isinstance(engine.tools_elsewhere, ProgramTool):
            return ProgramRunner(api, engine.tools_elsewhere)
        case "tool":
            return ToolRunner(engine.functions, sharing, threads)
    return DocumentRunner()


def _models(
    engine: Engine, api: Api, primitives: Iterable[Primitive]
) -> Mapping[str | None, Model]:
    """Return the models that the components of ``engine`` name, with its own under None."""
    of_engine: str | None = engine.config.get("model")
    found: dict[str | None, Model] = {}
    models = api.available_models()
    if engine.config.get("light") and models:
        found[None] = _lightest(models)
    else:
        found[None] = _model(api, of_engine, f"engine {engine.name!r}", f"{engine.name}.model")
    for one in primitives:
        if one.engine == engine.name and one.op in PREFILLS:
            name: str | None = one.config["model"]
            if name not in found:
                found[name] = _model(api, name, one.node, f"{one.node}.model")
    for model in models:  # grown components may name any of them
        found.setdefault(model.id, model)
    return found


def _lightest(models: Sequence[Model]) -> Model:
    whole = [model for model in models if model.served.adapter is None]
    return min(whole or models, key=lambda model: model.served.info.num_parameters)


def _model(api: Api, wanted: str | None, who: str, param: str) -> Model:
    models = api.available_models()
    for model in models:
        if wanted is None or model.id == wanted:
            return model
    served = ", ".join(model.id for model in models) or "none"
    raise InvalidArgument(
        f"{who} names the model {wanted!r}; the node serves {served}: name one of them",
        param=param,
    )


__all__ = [
    "ENCODER_KINDS",
    "StreamedAnswers",
    "check_encoders",
    "check_has_search",
    "check_kinds",
    "check_search",
    "check_tools",
    "runner_of",
]
