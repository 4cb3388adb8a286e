"""Guests that are WebAssembly modules of any language: the guest ABI, as their host keeps it."""
