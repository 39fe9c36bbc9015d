"""The server of the API's tests, for the client's."""

from __future__ import annotations

from tests.api.conftest import house, postgres_template, served, served_postgres, served_sqlite

__all__ = ["house", "postgres_template", "served", "served_postgres", "served_sqlite"]
