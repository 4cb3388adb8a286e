"""The HTTP listener: connections, their limits, and how bytes leave."""
