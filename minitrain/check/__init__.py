"""The ladder for any model, and faults that it must catch."""
