"""The programs behind the HTTP routes: what an ordinary client's request becomes.

``complete(api, request)`` (module ``completion``) yields the ``ChoiceChunk``s of a
``CompletionRequest`` as an async iterator over one program's ``Api``; it opens queues of its own
and frees everything when it ends, is closed (``aclose``) or cancelled.
"""

from quire.programs.builtin.completion import complete
from quire.programs.builtin.requests import ChoiceChunk, CompletionRequest, PromptImage

__all__ = ["ChoiceChunk", "CompletionRequest", "PromptImage", "complete"]
