"""Quantised checkpoints: how their tensors are packed, and how they become plain floats at load."""
