"""Traces: what programs did and when, how long it is kept, and the forms in which it is shown."""
