"""What several tests share: small data, textbook oracles, commands."""
