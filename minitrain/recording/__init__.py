"""The flight recorder: what any training loop computed, written down as it runs."""
