"""Mechanisms that protect what travels."""
