"""Checks the grammar in a request field before the answer begins; the error names the field."""

from __future__ import annotations

from starlette.requests import Request

from quire.core.decoding import GrammarSpec
from quire.core.errors import GrammarError
from quire.server.context import caller_of, context_of


async def check_grammar(request: Request, grammar: GrammarSpec, param: str) -> None:
    """Check that ``grammar``, from the field ``param``, can be used.

    Raises:
        GrammarError: it cannot be used.
        CapacityError: the system starts no process now.
        QuotaExceeded: too many grammars of the caller wait to be checked.
    """
    try:
        await context_of(request).node.check_grammar(grammar, caller_of(request))
    except GrammarError as exc:
        raise GrammarError(f"{param}: {exc.message}", param=param) from exc
