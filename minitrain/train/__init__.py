"""Training of one rank: its components, the loop, checkpoints and outputs."""
