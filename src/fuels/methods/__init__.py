"""The contract between methods and the engine (base.py), and one small file per method."""
