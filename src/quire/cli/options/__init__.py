"""The options of commands: groups of them, the values, and their names in errors."""
