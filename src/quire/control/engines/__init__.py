"""What control knows about one engine: its state, the message being built, the messages in
flight."""
