"""The example of Django's admin. Run by the Python of its own environment: ``django_admin.py PORT FOLDER``."""

import os
import subprocess
import sys
from pathlib import Path

port, folder = sys.argv[1:]
server = str(Path(__file__).parents[3] / "examples" / "django_admin" / "server.py")
database = str(Path(folder) / "django.sqlite3")
subprocess.run([sys.executable, server, "create", database], check=True)
os.execv(sys.executable, [sys.executable, server, "serve", port, database])
