"""The version, read by the build without importing torch."""

__version__ = "1.1.0"
