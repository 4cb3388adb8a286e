"""The programs behind the HTTP routes.

``complete(api, request)`` (module ``completion``) yields the ``ChoiceChunk``s of a
``CompletionRequest`` as an async iterator over one program's ``Api``. It creates its own queues and
frees everything when it ends, is closed (``aclose``) or cancelled.
"""

from quire.programs.builtin.completion import complete
from quire.programs.builtin.requests import ChoiceChunk, CompletionRequest, PromptImage

__all__ = ["ChoiceChunk", "CompletionRequest", "PromptImage", "complete"]
