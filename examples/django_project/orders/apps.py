"""The app. Nothing is opened here: Django imports it in processes that fork, migrate or only check."""

from django.apps import AppConfig


class OrdersConfig(AppConfig):
    name = "orders"

    def ready(self) -> None:
        from orders import workflows  # noqa: F401  # a mistake in a workflow shows when Django starts
