"""The personal model: stacked encoder and decoder, their kernels and optimisers."""
