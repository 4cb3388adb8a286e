"""The CUDA backend: runs a loaded model on an NVIDIA device.

``backend`` decides whether this machine can use it and builds it from its parts. Attention is
FlashInfer's where it is installed and applies, else the Triton kernel of ``kernels.attention``; the
decode loop of a message runs in CUDA graphs (``decode_loop``). Everything here can be imported, and
most of it tested, without a device.
"""
