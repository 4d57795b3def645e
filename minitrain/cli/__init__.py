"""The command line: a file for each command, and what serves it."""
