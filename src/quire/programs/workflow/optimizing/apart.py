"""Builds graphs beside the loop.

Passes of a developer, which may never return, get threads of their own and a bound on their time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from quire.core.errors import InvalidArgument
from quire.programs.workflow.passes import OptPass
from quire.programs.workflow.template.app import App

Built = TypeVar("Built")


async def built_apart(app: App, passes: OptPass, build: Callable[[], Built]) -> Built:
    """Call ``build``, which applies ``passes``, in a thread and return its result.

    Raises:
        InvalidArgument: passes of a developer have not ended within ``app.passes_limit_s``. Their
            thread is left alone: Python cannot end it.
    """
    if not passes.own:
        return await asyncio.to_thread(build)
    limit_s = app.passes_limit_s
    try:
        async with asyncio.timeout(limit_s) as timer:
            built: Built = await app.pass_threads.run(build)
    except TimeoutError as exc:
        if not timer.expired():
            raise
        raise InvalidArgument(
            f"the passes {', '.join(passes.own)} of {app.name} have not ended within {limit_s:g} s:"
            " correct one that never returns, or choose the passes without it",
            param="passes",
        ) from exc
    return built
