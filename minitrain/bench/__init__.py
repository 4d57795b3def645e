"""Benchmarks: interleaved arms of the speed comparison, and the collective ledger."""
