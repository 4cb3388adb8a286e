"""From a template to the graph that runs: its primitives, and the passes to the fixpoint."""
