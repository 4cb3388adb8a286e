"""The interface between quantisation schemes and the loader. Does not know files or models.

A model asks for plain tensors by name. A scheme names the stored tensors that make up a plain one,
with the shapes and dtypes that they must have (checked from the files' headers, before memory is
allocated), and converts them.
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
    """One stored tensor that is part of a plain one, with its required shape and dtypes."""

    name: str
    shape: Shape
    dtypes: frozenset[str]


class Scheme(Protocol):
    """One way to pack weights, with the parameters of one checkpoint.

    ``unread``: names of stored tensors that dequantisation does not need.
    """

    name: str
    unread: re.Pattern[str]

    def parts(
        self, name: str, shape: Shape, stored: Mapping[str, Header]
    ) -> dict[str, StoredPart] | None:
        """The parts of the plain tensor ``name``, by role; None if it is stored plain.

        Raises:
            ModelFormatError: the shape cannot be packed in this way.
        """
        ...

    def dequantize(self, name: str, shape: Shape, parts: Mapping[str, Tensor]) -> Tensor:
        """The plain tensor, in a dtype that represents every value exactly.

        Raises:
            ModelFormatError: values that contradict each other.
        """
        ...


def module_of(name: str, shape: Shape) -> str | None:
    """The module whose weight matrix is ``name``; None if it is not a weight matrix."""
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
