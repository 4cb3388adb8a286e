"""What runs inside a Python guest: the same API and SDK as outside, over messages as JSON text.

Nothing in here is trusted by the host. The modules also import outside of a guest, for tests; only
``app`` needs the generated bindings.
"""
