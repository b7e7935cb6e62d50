"""What clients learn from each other through sums: shared statistics and the live mean."""
