"""Attention over pages: the Protocol of backends and the plain PyTorch one that defines it."""
