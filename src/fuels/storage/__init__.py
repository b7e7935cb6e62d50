"""What is kept on disk: checkpoints, run folders, models."""
