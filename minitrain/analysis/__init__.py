"""Analysis of measurements and rungs: comparisons, step accounts, verdicts."""
