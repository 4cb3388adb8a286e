"""A cluster that one file describes: nodes and routers as processes that are kept running, and
exchanged while they serve.

It starts ``quire serve`` and ``quire router`` and speaks HTTP with them; it knows nothing of their
inside. Ray decides on which machine a process runs and keeps its keeper alive; it carries neither
tokens nor pages.
"""
