"""Personal traffic forecasters, learned together, without showing the data."""

__version__ = "0.1.0"
