"""Ordinary Django views: the order's row and its workflow appear in one transaction, or neither does."""

import json

from django.db import IntegrityError, connection, transaction
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import get_object_or_404
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_GET, require_POST

from orders.models import Order
from orders.workflows import as_json, hf


class Declined(Exception):
    pass


@csrf_exempt
@require_POST
def place(request: HttpRequest) -> HttpResponse:
    asked = json.loads(request.body)
    reference = str(asked["reference"])
    try:
        with transaction.atomic():
            handle = hf.sync.start("fulfil", reference, business_key=reference, connection=connection)
            Order.objects.create(reference=reference, amount_minor=asked["amount_minor"], instance=handle.id)
            if asked.get("card") == "declined":
                raise Declined  # rolls back: neither the order nor the instance exists
    except Declined:
        return JsonResponse({"detail": "the card was declined"}, status=402)
    except IntegrityError:
        return JsonResponse({"detail": f"there is an order {reference} already"}, status=409)
    return JsonResponse({"reference": reference, "instance": handle.id}, status=201)


@require_GET
def show(request: HttpRequest, reference: str) -> HttpResponse:
    order = get_object_or_404(Order, reference=reference)
    return JsonResponse({"reference": reference, "status": order.status, "workflow": as_json(order.instance)})


@csrf_exempt
@require_POST
def approve(request: HttpRequest, reference: str) -> HttpResponse:
    order = get_object_or_404(Order, reference=reference)
    new = hf.sync.instance(order.instance).signal("approved", {"by": request.GET.get("by", "")}, id="approved")
    return JsonResponse({"new": new}, status=202)
