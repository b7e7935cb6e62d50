"""Groups of clients and their gradient steps."""
