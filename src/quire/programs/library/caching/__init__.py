"""Reuse of computed pages: prefixes, modules, exports."""
