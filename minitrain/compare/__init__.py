"""Where two states, or two runs, begin to differ, and why."""
