"""The resource manager: virtual pages and embeds over the engine's memory (Pie 5.2)."""
