"""Control of attention: sinks, windows, hierarchies, eviction by attention scores."""
