"""OpenAI's batches: many requests in a file, run at low priority; their answers are written to
another file."""
