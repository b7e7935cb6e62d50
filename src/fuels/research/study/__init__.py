"""Many runs: a store that computes none of them twice, and their comparison."""
