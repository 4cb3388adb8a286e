"""Which cached pages go to the host tier before they are evicted, and when they come back."""
