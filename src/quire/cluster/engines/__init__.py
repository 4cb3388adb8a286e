"""The engines that strategies call: those of nodes, and pretended ones for a strategy's trial."""
