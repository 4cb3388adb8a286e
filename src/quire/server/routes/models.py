"""``/v1/models``: the models of this node."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Request
from starlette.responses import Response

from quire.core.errors import EngineLost
from quire.core.interfaces import ServedModel
from quire.node.encoders.service import EncoderService
from quire.server.context import ServerContext, context_of
from quire.server.requests.strict_json import StrictRoute
from quire.server.schemas.service import Model, ModelList

router = APIRouter(route_class=StrictRoute, tags=["models"])

ModelName = Annotated[str, Path(max_length=256)]


@router.head("/v1/models", include_in_schema=False)
@router.get("/v1/models", response_model=ModelList)
async def list_models(request: Request) -> Response:
    """The loaded models, the default one first. While none is loaded the answer is 503, and 404 if
    the node serves none: clients that take the first model of the list, or wait for a list, would
    go wrong with an empty one."""
    context = context_of(request)
    models = [_model(context, model) for model in context.node.models()]
    models += [one for encoder in context.node.encoders() if (one := _encoder(context, encoder))]
    if not models and not context.node.encoders():
        context.node.model()  # says why there is none
    if not models:
        raise EngineLost("no model is loaded yet: try again in a moment; GET /ready says when")
    body = ModelList(object="list", data=models)
    return Response(body.to_json(), media_type="application/json")


@router.get("/v1/models/{model:path}", response_model=Model)
async def get_model(request: Request, model: ModelName) -> Response:
    """One model; names may contain slashes."""
    context = context_of(request)
    for encoder in context.node.encoders():
        if encoder.name == model and (found := _encoder(context, encoder)) is not None:
            return Response(found.to_json(), media_type="application/json")
    body = _model(context, context.node.model(model))
    return Response(body.to_json(), media_type="application/json")


def _encoder(context: ServerContext, encoder: EncoderService) -> Model | None:
    """Return the model of an encoder; ``None`` if it is not loaded."""
    try:
        limit = encoder.texts.max_tokens
    except EngineLost:
        return None
    return Model(
        id=encoder.name,
        object="model",
        created=context.started_unix_s,
        owned_by="quire",
        root=encoder.name,
        parent=None,
        max_model_len=limit,
    )


def _model(context: ServerContext, model: ServedModel) -> Model:
    return Model(
        id=model.id,
        object="model",
        created=context.started_unix_s,
        owned_by="quire",
        root=model.info.model,
        parent=None if model.adapter is None else model.info.model,
        max_model_len=model.info.max_model_len,
    )
