"""`python manage.py holdfast_worker --concurrency 50`: `holdfast worker` in a process where Django is set up."""

from typing import Any

from django.core.management.base import BaseCommand

from holdfast.cli.main import cli


class Command(BaseCommand):
    help = "Run the project's workflows until stopped. Options are those of `holdfast worker`."

    def run_from_argv(self, argv: list[str]) -> None:
        self.handle(*argv[2:])  # the options are Holdfast's, so Django's parser does not see them

    def handle(self, *args: str, **_options: Any) -> None:
        cli.main(["worker", "--app", "orders.workflows:hf", *args], prog_name="manage.py")
