"""Grammars are compiled and tried before control hears of them: see ``checker``."""
