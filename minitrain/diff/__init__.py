"""Where two states, or two runs, part, and why."""
