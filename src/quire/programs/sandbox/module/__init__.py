"""Guests that are WebAssembly modules of any language: the host's side of the guest ABI."""
