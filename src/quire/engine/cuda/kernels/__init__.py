"""Triton kernels. Importing a module of this folder needs the package ``triton``, which CUDA builds
of PyTorch bring along; nothing else of the project imports it. See ``cuda.optional``."""
