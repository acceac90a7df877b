"""Pure functions and factors behind the models."""
