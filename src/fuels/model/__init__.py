"""The personal model of stacked clients: encoder, decoder and optimisers, in plain PyTorch."""
