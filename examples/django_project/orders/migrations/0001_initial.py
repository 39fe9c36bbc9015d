"""The table of orders."""

from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True
    dependencies = []  # noqa: RUF012
    operations = [  # noqa: RUF012
        migrations.CreateModel(
            name="Order",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("reference", models.CharField(max_length=100, unique=True)),
                ("amount_minor", models.PositiveIntegerField()),
                ("status", models.CharField(default="new", max_length=20)),
                ("instance", models.CharField(max_length=40)),
            ],
        ),
    ]
