"""Comparison of states, runs and recordings: the first difference, and its cause."""
