"""Runs shown in TensorBoard and MLflow (extras), and an MLflow flavour for saved models."""
