"""Who waits and who runs: commands ready for a message, decodes and their seats."""
