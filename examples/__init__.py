"""Examples: each runs as a script, and as a test."""
