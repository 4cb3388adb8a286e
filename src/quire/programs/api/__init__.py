"""The programming interface of programs: the ``Api`` object, handles and replies.

There is one module for each trait (Pie, section 4.4), with Pie's function names;
``docs/reference/api.md`` is generated from these modules.
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
