"""``quire workflow``."""
