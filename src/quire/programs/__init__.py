"""The application layer: what programs are written against, and what runs them.

``api`` is the programming interface, ``runtime`` runs programs, ``services`` are the node's
services for them (HTTP, messages, stores, children), ``sdk`` is the higher-level interface,
``sandbox`` runs untrusted programs, ``builtin`` holds the programs behind the HTTP routes, ``chat``
the text side of conversations and ``library`` the shipped techniques, and
``workflow`` makes graphs of primitives of applications. The layer imports
``quire.core`` alone; it reaches a node through a ``ProgramPort`` and does not know which node it
is.
"""

from quire.programs.inferlet import Inferlet, inferlet, load_inferlet

__all__ = ["Inferlet", "inferlet", "load_inferlet"]
