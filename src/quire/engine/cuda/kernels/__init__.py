"""Triton kernels. Importing a module of this folder requires the package ``triton``, which CUDA
builds of PyTorch include. No other folder imports ``triton``; see ``cuda.optional``."""
