"""Tables: their files, and columns of numbers and text."""
