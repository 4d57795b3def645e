"""Checks of a run: by replay (bits), one process (tolerances), an independent witness.

Each check returns a rung (result); ``analysis.verdicts`` combines a run's rungs.
"""
