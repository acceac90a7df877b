"""The version, read by the build without importing torch."""

__version__ = "0.1.0"
