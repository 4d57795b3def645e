"""Benchmarks: interleaved timing of configurations, and counting of collectives."""
