"""The thread of the controller: what reaches it, what leaves it, and its event log."""
