"""A cluster as one file describes it: nodes and routers as processes that are kept running, and
changed while they serve.

It starts ``quire serve`` and ``quire router`` and speaks HTTP with them; it knows nothing of what
they are made of. Ray decides on which machine a process is and keeps its keeper alive; it carries
neither tokens nor pages.
"""
