"""The equations of the FUELS paper, in plain PyTorch and NumPy: the reference."""
