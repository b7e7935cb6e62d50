"""Forecasts from trained models."""
