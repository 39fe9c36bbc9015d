"""A door: the `holdfast` command."""
