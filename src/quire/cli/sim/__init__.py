"""``quire sim``."""
