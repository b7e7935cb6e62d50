"""What a person sees of a run: progress while it trains, then tables and plots."""
