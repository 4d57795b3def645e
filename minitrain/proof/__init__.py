"""What a run is held to: bits of a replay, tolerances, the witness."""
