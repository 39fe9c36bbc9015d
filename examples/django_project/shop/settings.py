"""Django's tables and Holdfast's in one PostgreSQL database: both take it from HOLDFAST_DATABASE_URL."""

import os
from urllib.parse import unquote, urlsplit

SECRET_KEY = os.environ.get("DJANGO_SECRET_KEY", "only for an example")
DEBUG = os.environ.get("DJANGO_DEBUG") == "1"
ALLOWED_HOSTS = ["127.0.0.1", "localhost"]
INSTALLED_APPS = ["orders"]
ROOT_URLCONF = "shop.urls"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
USE_TZ = True

_url = urlsplit(os.environ["HOLDFAST_DATABASE_URL"])
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": unquote(_url.path[1:]),
        "USER": unquote(_url.username or ""),
        "PASSWORD": unquote(_url.password or ""),
        "HOST": _url.hostname or "",
        "PORT": _url.port or "",
    }
}
