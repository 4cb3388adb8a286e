"""Tensor parallelism: one model over several processes of one host (Shoeybi et al., 2019).

Rank 0 is the engine: it alone has tables, sequences, sampling and grammars. The other ranks execute
its runner's calls on their part of the weights and of the cache.
"""
