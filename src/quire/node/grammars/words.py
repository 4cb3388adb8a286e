"""What a refused grammar is told: the compiler's words, or ours where it has only a name for it."""

from __future__ import annotations

from quire.core.decoding import GrammarSpec
from quire.core.errors import GrammarError
from quire.node.grammars.endless_schema import endless_reference

_NOTHING_FITS = "NoExtensionBias"
"""llguidance's name for a grammar that lets nothing follow."""

_NOT_ENFORCED = "Unimplemented keys"
"""How it begins to say that a schema has keywords which it knows and cannot enforce."""

_ADVICE = "; correct it"


def in_our_words(error: GrammarError, grammar: GrammarSpec) -> GrammarError:
    """What ``error`` means for who wrote ``grammar``."""
    if (reference := endless_reference(grammar)) is not None:
        return GrammarError(
            f"the schema refers to itself without end ({reference}): let a value end somewhere"
        )
    if _NOTHING_FITS in error.message:
        return GrammarError("no text can match the grammar: correct it")
    if _NOT_ENFORCED in error.message:
        keys = error.message[error.message.index(_NOT_ENFORCED) :].removesuffix(_ADVICE)
        return GrammarError(f"{keys}: answers cannot be held to them, leave them out")
    return error


__all__ = ["in_our_words"]
