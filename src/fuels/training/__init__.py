"""Local training: groups of stacked clients and the gradient step."""
