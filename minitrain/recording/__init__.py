"""Recorder of any training loop: what it computes, and how long each phase takes."""
