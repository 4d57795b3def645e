"""What measurements and rungs come to: comparisons, accounts, verdicts."""
