"""Commands to rows and operations of a message."""
