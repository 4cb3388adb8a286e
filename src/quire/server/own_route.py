"""The class of the routes of Quire's own API.

Routes of other APIs take what their clients send beside it, such as ``?beta=true``; here such a
parameter can only be a mistake, and a list that is not filtered would be taken for one that is.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from quire.server.requests.query_names import check_query
from quire.server.requests.strict_json import StrictRoute


class OwnRoute(StrictRoute):
    """A route that refuses a parameter of its query that it does not have."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handler = super().get_route_handler()
        known = [one.alias for one in self.dependant.query_params]

        async def own_handler(request: Request) -> Response:
            check_query(request.query_params, known)
            return await handler(request)

        return own_handler
