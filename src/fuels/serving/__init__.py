"""A run as a service: forecasts over HTTP, and new values as they arrive."""
