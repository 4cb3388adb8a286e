"""Tensor parallelism: one model over several processes of one host (Shoeybi et al., 2019).

Rank 0 is the engine: it alone has tables, sequences, sampling and grammars. The other ranks follow
its runner's calls with their part of the weights and of the cache.
"""
