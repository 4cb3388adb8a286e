"""A chat whose first tokens another engine has sent: a router names the lease in a header of the
chat.

Owns the header, and what happens if the lease does not fit the chat. Must not know what is sent,
nor routes.
"""

from __future__ import annotations

import logging
from dataclasses import replace

from starlette.requests import Request

from quire.core.interfaces import ServedModel
from quire.programs.builtin import CompletionRequest
from quire.server.context import caller_of, context_of
from quire.server.microserving.headers import RECEIVED_HEADER
from quire.server.microserving.prompts import ExchangePrompt, adapter_of

logger = logging.getLogger(__name__)


def with_received(
    request: Request, model: ServedModel, asked: CompletionRequest
) -> CompletionRequest:
    """Return ``asked`` with K and V of its first tokens from the lease that the request names. A
    lease for another prompt, model or adapter is ignored: then all tokens are computed.

    Raises:
        Unauthorized, Forbidden: the request does not come from the cluster.
        InvalidArgument, UnknownHandle: there is no such lease.
    """
    sealed = request.headers.get(RECEIVED_HEADER)
    if sealed is None:
        return asked
    addresses = context_of(request).addresses
    addresses.check_sender(request.headers)
    address = addresses.open(sealed, caller_of(request))
    prompt = ExchangePrompt(asked.prompt, asked.images)
    is_same = (
        address.content == model.info.content
        and address.adapter == adapter_of(model)
        and len(prompt.tokens) > address.end
        and prompt.digest(address.end) == address.tokens
    )
    if not is_same:
        logger.warning(
            "the lease that a chat names is for %d tokens of another prompt, model or adapter: the "
            "chat's are computed",
            address.end,
        )
        return asked
    return replace(asked, lease=addresses.lease(address), num_leased=address.end)
