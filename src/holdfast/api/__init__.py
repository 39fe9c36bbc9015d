"""A door: the REST API."""
