"""Names the field of a body that has the prompt or text, in errors of those that are too long."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from quire.core.errors import PromptTooLong


@contextmanager
def prompt_field(param: str) -> Iterator[None]:
    """Have a ``PromptTooLong`` that is raised within name ``param``, the field with the prompt."""
    try:
        yield
    except PromptTooLong as error:
        error.details["param"] = param
        raise


@contextmanager
def pair_fields(first: str, second: str, *, is_list: bool) -> Iterator[None]:
    """Have a ``PromptTooLong`` of pairs name the field of the text that is too long: ``first``, or
    ``second`` with the text's place in it if it ``is_list``."""
    try:
        yield
    except PromptTooLong as error:
        place = f"[{error.details['index']}]" if is_list and "index" in error.details else ""
        error.details["param"] = first if "is_first" in error.details else f"{second}{place}"
        raise
