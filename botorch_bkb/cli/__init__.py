"""The command line's jobs; ``python -m botorch_bkb`` is the way in."""
