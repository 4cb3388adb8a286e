"""Programs on the command line: which one is meant, its arguments, its code, and its end."""
