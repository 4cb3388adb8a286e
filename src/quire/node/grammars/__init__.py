"""Compiles and tries grammars before control receives them: see ``checker``."""
