"""Text completion: in three lines, with single commands, and with several branches."""
