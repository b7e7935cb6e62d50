"""Protection of what clients send: noise, secret orders, and differential privacy with a ledger."""
