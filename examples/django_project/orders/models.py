"""An order, and the instance that looks after it."""

from django.db import models


class Order(models.Model):
    reference = models.CharField(max_length=100, unique=True)
    amount_minor = models.PositiveIntegerField()
    status = models.CharField(max_length=20, default="new")
    instance = models.CharField(max_length=40)
