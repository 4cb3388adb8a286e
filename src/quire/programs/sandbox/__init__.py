"""Untrusted programs: WebAssembly guests, their interface to the host, and their limits.

A runtime process (``quire.node.sandbox``) uses this package to compile and run guests: ``host``
runs both kinds, ``python`` and ``module``, which do not know each other and use ``wasm``. The
modules of this folder are shared by all of them: messages, limits, a program before it runs,
answers to guests' questions. Nothing here knows which node is behind a guest's port.
"""
