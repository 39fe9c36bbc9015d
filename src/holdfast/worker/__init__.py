"""DOOR: claims due instances and moves them, one committed turn at a time."""
