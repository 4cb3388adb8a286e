"""The way of a request through the router and of its answer back."""
