"""Mechanisms that protect uploads."""
