"""Bridges to other packages, each behind an extra; importing this loads none."""
