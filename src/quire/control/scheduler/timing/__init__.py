"""How long steps take, and what follows for the next message."""
