"""Benchmarks as programs: ``python -m benchmarks NAME``."""
