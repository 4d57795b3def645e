"""Ranks: how they start, meet and talk, and in which order they add."""
