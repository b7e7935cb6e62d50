"""Experiments, studies and benchmarks; the core never imports it."""
