"""Quantised checkpoints: how their tensors are packed, and their conversion to plain floats at
load."""
