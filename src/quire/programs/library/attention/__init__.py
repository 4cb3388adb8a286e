"""Choosing what tokens see: sinks, windows, hierarchies, eviction by attention scores."""
