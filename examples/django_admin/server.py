"""Django's admin with users and groups, as a server of web tasks.

``python server.py create FILE`` makes a database; ``python server.py serve PORT FILE`` serves ``/admin/``.
"""

import sys

import django
from django.conf import settings
from django.core.management import execute_from_command_line

mode, *arguments = sys.argv[1:]
settings.configure(
    ALLOWED_HOSTS=["admin.localhost", "127.0.0.1"],
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": arguments[-1]}},
    DEBUG=True,  # serves style sheets and scripts
    INSTALLED_APPS=[
        f"django.contrib.{name}" for name in ("admin", "auth", "contenttypes", "sessions", "messages", "staticfiles")
    ],
    MIDDLEWARE=[
        "django.contrib.sessions.middleware.SessionMiddleware",
        "django.middleware.csrf.CsrfViewMiddleware",
        "django.contrib.auth.middleware.AuthenticationMiddleware",
        "django.contrib.messages.middleware.MessageMiddleware",
    ],
    PASSWORD_HASHERS=["django.contrib.auth.hashers.MD5PasswordHasher"],  # quick; the password protects nothing
    ROOT_URLCONF=__name__,
    SECRET_KEY="not a secret",
    STATIC_URL="/static/",
    TIME_ZONE="UTC",
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
NAMES = ("ada", "ben", "carl", "dora", "emil", "finn", "greta", "hugo", "ines", "jan", "kim", "lea")

if __name__ == "__main__":
    if mode == "create":
        execute_from_command_line(["django", "migrate", "--verbosity=0"])
        User.objects.create_superuser("admin", "admin@example.org", "secret")
        for number, name in enumerate(NAMES):
            User.objects.create_user(name, f"{name}@example.org", is_staff=number % 3 == 0)
        for name in ("Editors", "Translators"):
            Group.objects.create(name=name)
    else:
        execute_from_command_line(["django", "runserver", "--noreload", f"127.0.0.1:{arguments[0]}"])
