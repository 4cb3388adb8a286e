"""Untrusted programs: WebAssembly guests, what they are given, and what bounds them.

A runtime process (``quire.node.sandbox``) uses this package to compile and drive guests: ``host``
drives both kinds, ``python`` and ``module``, which know nothing of each other and run on ``wasm``.
The modules here are what all of them say: messages, limits, a program before it runs, answers to
its questions. Nothing here knows which node is behind a guest's port.
"""
