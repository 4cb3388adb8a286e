"""What a quantisation scheme tells the loader. Knows nothing of files or of models.

A model asks for plain tensors by name. A scheme says which stored tensors make up one of them, what
these must look like (checked from the files' headers, before memory is taken), and turns them into
the plain one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from quire.core.errors import ModelFormatError

FLOATS = frozenset({"F64", "F32", "F16", "BF16"})
"""Plain dtypes, as safetensors spells them."""

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Header:
    """A stored tensor as its file's header describes it."""

    shape: Shape
    dtype: str


@dataclass(frozen=True, slots=True)
class StoredPart:
    """One stored tensor that a plain one is made of, and what it must look like."""

    name: str
    shape: Shape
    dtypes: frozenset[str]


class Scheme(Protocol):
    """One way to pack weights, with the parameters of one checkpoint.

    ``unread``: names of stored tensors that dequantising does not need.
    """

    name: str
    unread: re.Pattern[str]

    def parts(
        self, name: str, shape: Shape, stored: Mapping[str, Header]
    ) -> dict[str, StoredPart] | None:
        """What makes up the plain tensor ``name``, by role; None if it is stored as it is.

        Raises:
            ModelFormatError: the shape cannot be packed in this way.
        """
        ...

    def dequantize(self, name: str, shape: Shape, parts: Mapping[str, Tensor]) -> Tensor:
        """The plain tensor, in a dtype that loses nothing.

        Raises:
            ModelFormatError: values that contradict each other.
        """
        ...


def module_of(name: str, shape: Shape) -> str | None:
    """The module whose weight matrix ``name`` is; None if it is no such thing."""
    if len(shape) != 2 or not name.endswith(".weight"):
        return None
    return name.removesuffix(".weight")


def check_divides(name: str, shape: Shape, divisors: Shape) -> None:
    """Raise ``ModelFormatError`` unless every axis is a multiple of its divisor."""
    for size, divisor in zip(shape, divisors, strict=True):
        if size % divisor:
            raise ModelFormatError(
                f"tensor {name!r} of shape {list(shape)} cannot be packed in units of "
                f"{list(divisors)}: quantization_config does not belong to this model"
            )
