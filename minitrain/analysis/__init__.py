"""Analysis of measurements and checks: speed, step time, stragglers, verdicts."""
