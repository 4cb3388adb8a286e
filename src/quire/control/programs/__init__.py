"""What control knows of programs: the process table, families, accounts, states."""
