"""What control knows of one engine: its state, the message being built, what is in flight."""
