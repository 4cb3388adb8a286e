"""What in a text is a term."""
