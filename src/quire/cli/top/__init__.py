"""``quire top``."""
