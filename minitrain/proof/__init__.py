"""Proofs for a run: bits of a replay, tolerances, an independent witness."""
