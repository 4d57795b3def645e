"""What measures: arms that take turns, all-reduces by size, the collective ledger."""
