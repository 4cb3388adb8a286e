"""Keeping what was computed: prefixes, modules, pages that others may import."""
