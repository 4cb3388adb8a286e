"""Names the field of a body that has the prompt, in errors of prompts that are too long."""

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
