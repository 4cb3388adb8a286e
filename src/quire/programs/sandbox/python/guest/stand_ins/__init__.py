"""Modules that take the place of others inside a guest, where there are no C extensions."""
