"""Exit status of the ``quire`` command; 0 is success.

Imports nothing: the status of an interrupt must be known before anything else is loaded.
"""

from __future__ import annotations

EXIT_FAILED = 1
"""The program or check that was run has failed."""

EXIT_ERROR = 2
"""The command could not be carried out: wrong usage, or any error of Quire's own."""

EXIT_INTERRUPTED = 130
