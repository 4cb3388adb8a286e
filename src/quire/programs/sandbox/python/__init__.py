"""Guests that are Python programs: the interpreter as a component; ``guest`` runs inside it."""
