"""Proofs for a run: bits of a replay, tolerances, an independent witness.

Each check gets its verdict here; ``analysis.verdicts`` combines them for the run.
"""
