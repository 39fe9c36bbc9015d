"""Orders are placed, looked at and approved."""

from django.urls import path
from orders import views

urlpatterns = [
    path("orders", views.place),
    path("orders/<str:reference>", views.show),
    path("orders/<str:reference>/approve", views.approve),
]
