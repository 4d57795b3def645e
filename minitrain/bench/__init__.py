"""What measures: interleaved arms, all-reduces by size, the collective ledger."""
