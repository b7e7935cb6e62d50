"""Compiled twins of the reference code, and what they are built from."""
