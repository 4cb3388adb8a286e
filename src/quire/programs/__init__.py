"""The application layer: what programs are written against, and what runs them.

``api`` is the programming interface, ``runtime`` runs programs, ``services`` is what it gives them
beside the model, ``sdk`` makes them short, ``builtin`` holds the programs behind the HTTP routes,
``chat`` the text side of conversations and ``library`` the shipped techniques. Sees ``quire.core``
alone; it reaches a node through a ``ProgramPort`` and never knows which one.
"""

from quire.programs.inferlet import Inferlet, inferlet, load_inferlet

__all__ = ["Inferlet", "inferlet", "load_inferlet"]
