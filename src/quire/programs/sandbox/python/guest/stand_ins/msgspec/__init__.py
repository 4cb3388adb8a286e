"""The part of msgspec that programs and their API use, in plain Python."""

from . import json, structs
from .conversion import convert
from .structs import (
    DecodeError,
    Meta,
    MsgspecError,
    Struct,
    ValidationError,
    defstruct,
    field,
    to_builtins,
)

__version__ = "stand-in"

__all__ = [
    "DecodeError",
    "Meta",
    "MsgspecError",
    "Struct",
    "ValidationError",
    "convert",
    "defstruct",
    "field",
    "json",
    "structs",
    "to_builtins",
]
