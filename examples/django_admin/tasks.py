"""Tasks on Django's admin: the rows, a setup that logs in, and a check that compares the database.

>>> env = gym.make("rllm/Web-v0", tasks=rows(python="/path/to/a/python/with/django"))  # doctest: +SKIP
"""

import base64
import contextlib
import http.cookiejar
import json
import re
import sqlite3
import subprocess
import tempfile
import urllib.parse
import urllib.request
from pathlib import Path

SERVER = Path(__file__).with_name("server.py")
TABLES = {
    "users": "SELECT username, email, is_active, is_staff, is_superuser FROM auth_user",
    "groups": "SELECT name FROM auth_group",
    "members": "SELECT username, name FROM auth_user_groups JOIN auth_user ON user_id = auth_user.id "
    "JOIN auth_group ON group_id = auth_group.id",
}


def rows(python):
    """Return the task rows. ``python`` is a Python that has Django."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "db.sqlite3")
        subprocess.run([python, SERVER, "create", file], check=True)
        database = base64.b64encode(file.read_bytes()).decode()
    common = {
        "url": "http://admin.localhost/admin/",
        "server": {"command": python, "args": [str(SERVER), "serve", "{port}", "{workspace}/db.sqlite3"]},
        "workspace": {"db.sqlite3": {"base64": database}},  # a copy for each episode
        "setup": "tasks:log_in",
        "check": "tasks:changed_as_requested",
    }
    goals = {
        "add-group": ("Add a group named Auditors.", {"groups": [["Auditors"]]}, {}),
        "deactivate": (
            "The user kim has left. Deactivate the account without deleting it.",
            {"users": [["kim", "kim@example.org", 0, 0, 0]]},
            {"users": [["kim", "kim@example.org", 1, 0, 0]]},
        ),
        "join-group": ("Make ada a member of the group Editors.", {"members": [["ada", "Editors"]]}, {}),
    }
    changes = [
        {**common, "id": name, "goal": goal, "data": {"added": added, "removed": removed}}
        for name, (goal, added, removed) in goals.items()
    ]
    question = {
        **common,
        "id": "count-staff",
        "goal": "How many users have staff status?",
        "data": {"added": {}, "removed": {}},
        "answer": {"type": "number", "value": 5},
    }
    return [*changes, question]


def log_in(url, seed, data, workspace):
    """Log in over HTTP at the server's own address; the browser starts with the cookie of the session."""
    jar = http.cookiejar.CookieJar()
    client = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(jar))
    page = client.open(url).read().decode()  # Django redirects to its form
    token = re.search(r'name="csrfmiddlewaretoken" value="(\w+)"', page)[1]
    form = {"username": "admin", "password": "secret", "csrfmiddlewaretoken": token}
    client.open(urllib.parse.urljoin(url, "login/?next=/admin/"), urllib.parse.urlencode(form).encode())
    (workspace / "before.json").write_text(json.dumps(contents(workspace)))
    return {cookie.name: cookie.value for cookie in jar}


def contents(workspace):
    """Return the rows of each table that tasks are about, sorted."""
    with contextlib.closing(sqlite3.connect(workspace / "db.sqlite3")) as database:
        return {table: sorted(map(list, database.execute(query))) for table, query in TABLES.items()}


def changed_as_requested(state, answer):
    """Return whether the requested rows were added and removed, and no others."""
    before, after = json.loads((state.workspace / "before.json").read_text()), contents(state.workspace)
    for table in TABLES:
        added = [row for row in after[table] if row not in before[table]]
        removed = [row for row in before[table] if row not in after[table]]
        if added != state.data["added"].get(table, []) or removed != state.data["removed"].get(table, []):
            return False
    return True
