"""The fields that every body of one answer repeats: id, time and model."""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass

from quire.core.interfaces import ServedModel


@dataclass(frozen=True, slots=True)
class Frame:
    """``fingerprint`` changes when weights, dtype or layout of the model change."""

    key: str
    created_unix_s: int
    model: str
    fingerprint: str


def new_frame(model: ServedModel) -> Frame:
    return Frame(
        key=uuid.uuid4().hex,
        created_unix_s=int(time.time()),
        model=model.id,
        fingerprint=f"fp_{model.info.content[:8]}{model.info.layout[:4]}",
    )
