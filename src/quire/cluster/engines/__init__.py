"""What a strategy meets: the engines of nodes, and pretended ones to try it on."""
