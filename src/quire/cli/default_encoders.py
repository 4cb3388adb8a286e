"""The encoders of a node for workflows, if --encoder names none."""

from __future__ import annotations

from collections.abc import Iterable

from quire.node import installed_encoder
from quire.programs.workflow.engines.engine import Engine
from quire.programs.workflow.runners import ENCODER_KINDS

_NAME = "minilm"


def default_encoders(engines: Iterable[Engine]) -> list[str]:
    """Return what --encoder would say for ``engines`` to use the encoder of an installed package:
    for texts, and for pairs by the vectors of their tokens. Nothing if there is none.

    Raises:
        ModelFormatError: see ``installed_encoder``.
    """
    kinds = {engine.kind for engine in engines} & ENCODER_KINDS.keys()
    source = installed_encoder() if kinds else None
    if source is None:
        return []
    forms = {"embedding": f"{_NAME}={source}", "rerank": f"rank=late-interaction:{source}"}
    return [form for kind, form in forms.items() if kind in kinds]
