"""The native CPU kernel: products, attention and whole decode steps in C++.

``csrc`` is the kernel; ``library`` finds, chooses and loads it. Where it cannot be built or loaded,
the engine computes the same in PyTorch.
"""
