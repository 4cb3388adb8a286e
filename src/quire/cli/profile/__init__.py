"""``quire profile``."""
