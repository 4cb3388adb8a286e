"""Untrusted programs: WebAssembly guests, what they are given, and what bounds them.

A runtime process (``quire.node.sandbox``) uses this package to compile and drive guests. ``guest``
is the part that runs inside of one. Nothing here knows which node is behind a guest's port.
"""
