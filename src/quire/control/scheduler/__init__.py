"""The batch scheduler: which work of an engine goes into its next message, and when (Pie 5.2)."""
