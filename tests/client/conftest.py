"""The house of the API's tests, for the client's."""

from __future__ import annotations

from tests.api.conftest import house

__all__ = ["house"]
