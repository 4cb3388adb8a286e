"""The programming interface of programs (Pie, section 4.4).

* ``Api`` is the first argument of every program. It has all functions; ``TRAIT_FUNCTIONS`` has
  their names by trait.
* Most functions issue a command and return at once. What they return is a handle (``KvPage``,
  ``Embed``, ``TokenSlot``, ``Queue``) that later commands may name, or a ``Reply`` to await.
  ``decode`` returns a ``DecodeStream``, whose end is a ``Decoded``.
* ``Model`` is an entry of ``available_models``.
* ``connect_api`` and ``Issuer`` connect an ``Api`` to a port; only runtimes and tests need them.

Errors are exceptions of ``quire.core.errors``. There is one module for each trait, with Pie's
function names; ``docs/reference/api.md`` is generated from these modules. Programs usually use the
SDK above it (``quire.programs.sdk``).
"""

from quire.programs.api.allocate import ImportedPrefix
from quire.programs.api.api import TRAIT_FUNCTIONS, Api, connect_api
from quire.programs.api.handles import Embed, KvPage, Queue, TokenSlot
from quire.programs.api.issuer import Issuer
from quire.programs.api.model import Model
from quire.programs.api.reply import Reply
from quire.programs.api.scores import AttentionScores
from quire.programs.api.stream import Decoded, DecodeStream

__all__ = [
    "TRAIT_FUNCTIONS",
    "Api",
    "AttentionScores",
    "DecodeStream",
    "Decoded",
    "Embed",
    "ImportedPrefix",
    "Issuer",
    "KvPage",
    "Model",
    "Queue",
    "Reply",
    "TokenSlot",
    "connect_api",
]
