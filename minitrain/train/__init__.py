"""Training of one rank: its parts, the loop, checkpoints and outputs."""
