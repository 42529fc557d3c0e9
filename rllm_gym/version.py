"""The version of this package. The build reads it from this file."""

__version__ = "0.2.0"
