"""Scores, references, and the evaluation of a run on its test part."""
