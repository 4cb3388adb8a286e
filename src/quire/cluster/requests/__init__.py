"""What is asked of a router: the request, where it belongs, and its answer on the way."""
