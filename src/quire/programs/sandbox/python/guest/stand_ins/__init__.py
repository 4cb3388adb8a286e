"""Modules that replace others inside a guest, where there are no C extensions."""
