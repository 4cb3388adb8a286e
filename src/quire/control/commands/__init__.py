"""Commands from issue to end: checks, order in queues, what is held, host commands."""
