"""Runs inside a Python guest: the same API and SDK as outside, over messages as JSON text.

The host trusts nothing in here. The modules can also be imported outside of a guest, for tests;
only ``app`` needs the generated bindings.
"""
