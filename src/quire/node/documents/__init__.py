"""Documents to text, in processes of their own."""
