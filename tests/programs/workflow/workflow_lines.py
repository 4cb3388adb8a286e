"""Counts the lines that workflows' modules run."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, TypeVar

T = TypeVar("T")


def with_num_lines(call: Callable[[], T]) -> tuple[T, int]:
    """What ``call`` returns, and how many lines of workflows' modules it runs, a comprehension's
    once an element."""
    num_lines = 0

    def in_frame(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal num_lines
        num_lines += event == "line"
        return in_frame

    def entered(frame: FrameType, event: str, argument: Any) -> Any:
        return in_frame if "programs/workflow" in frame.f_code.co_filename else None

    before = sys.gettrace()
    sys.settrace(entered)
    try:
        result = call()
    finally:
        sys.settrace(before)
    return result, num_lines
