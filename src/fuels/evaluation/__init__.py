"""What a result is compared with, and how it is scored."""
