"""Django's admin with users and groups. Run by the Python of its own environment: ``django_admin.py PORT FOLDER``."""

import sys
from pathlib import Path

import django
from django.conf import settings
from django.core.management import execute_from_command_line

port, folder = sys.argv[1:]
settings.configure(
    ALLOWED_HOSTS=["*"],
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": Path(folder) / "django.sqlite3"}},
    DEBUG=True,
    INSTALLED_APPS=[
        f"django.contrib.{name}" for name in ("admin", "auth", "contenttypes", "sessions", "messages", "staticfiles")
    ],
    MIDDLEWARE=[
        "django.contrib.sessions.middleware.SessionMiddleware",
        "django.middleware.csrf.CsrfViewMiddleware",
        "django.contrib.auth.middleware.AuthenticationMiddleware",
        "django.contrib.messages.middleware.MessageMiddleware",
    ],
    ROOT_URLCONF=__name__,
    SECRET_KEY="not a secret",
    STATIC_URL="/static/",
    TEMPLATES=[
        {
            "BACKEND": "django.template.backends.django.DjangoTemplates",
            "APP_DIRS": True,
            "OPTIONS": {
                "context_processors": [
                    "django.template.context_processors.request",
                    "django.contrib.auth.context_processors.auth",
                    "django.contrib.messages.context_processors.messages",
                ]
            },
        }
    ],
)
django.setup()

from django.contrib import admin  # noqa: E402 - after setup()
from django.contrib.auth.models import Group, User  # noqa: E402
from django.urls import path  # noqa: E402

urlpatterns = [path("admin/", admin.site.urls)]

if __name__ == "__main__":
    execute_from_command_line(["django", "migrate", "--verbosity=0"])
    User.objects.create_superuser("admin", "admin@example.org", "secret")
    for number in range(30):
        User.objects.create_user(f"user{number}")
    for number in range(5):
        Group.objects.create(name=f"group {number}")
    execute_from_command_line(["django", "runserver", "--noreload", f"127.0.0.1:{port}"])
