"""The folder of an office: logs, notes, sales tables, settings, drafts, chapters, as needed by a task."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import date, timedelta
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from rllm_gym.envs.mcp.domains.files.folder import Folder, tree
from rllm_gym.envs.mcp.serving import server
from rllm_gym.envs.mcp.task import DomainState
from rllm_gym.envs.mcp.wording import CITIES, LAST_NAMES, a_day, a_today, words
from rllm_gym.mcp.servers import InProcessServer

PROJECTS = words("Falcon Juniper Marble Nimbus Orchid Pelican Quartz Saffron Tundra Willow")
TOPICS = words("budget hiring roadmap security travel training website workshop")
SERVICES = words("billing cache gateway mailer search uploads")
LEVELS = ("INFO", "INFO", "INFO", "WARN", "ERROR")
GOODS = words("chairs desks lamps monitors paper printers shelves tables")
_SIZE = {1: 4, 2: 8, 3: 14}

Texts = dict[str, str]
"""Texts of files, by path."""


class FilesState(DomainState):
    """A folder of texts in the workspace.

    Attributes:
        texts: The initial files.
        today: The current date in the task, if the task depends on it.
        details: Facts about the files beyond their texts, by path.
    """

    def __init__(self, texts: Texts, today: date, details: dict[str, Any]) -> None:
        self.texts = texts
        self.today = today
        self.details = details

    def prepare(self, workspace: Path) -> None:
        for folder in {Path(path).parent for path in self.texts}:
            (workspace / folder).mkdir(parents=True, exist_ok=True)
        for path, text in self.texts.items():
            (workspace / path).write_text(text)

    def servers(self, workspace: Path) -> Sequence[InProcessServer]:
        return [files_server(workspace)]

    def facts(self, workspace: Path) -> Any:
        return tree(workspace)


def files_server(workspace: Path) -> InProcessServer:
    return server("files", lambda: Folder(workspace).tools(), instructions="Text files in the folder of an office.")


Fill = Callable[[Random, int, date, Texts, dict[str, Any]], None]
"""``fill(rng, difficulty, today, texts, details)``: adds some files."""


def office(*fills: Fill) -> Callable[[int, int], FilesState]:
    """Return a function that builds an office with these files."""
    return partial(_build, fills)


def _build(fills: Sequence[Fill], seed: int, difficulty: int) -> FilesState:
    rng = Random(f"files/{seed}/{difficulty}")
    today = a_today(rng)
    texts: Texts = {}
    details: dict[str, Any] = {}
    for fill in fills:
        fill(rng, difficulty, today, texts, details)
    return FilesState(texts, today, details)


def notes(rng: Random, difficulty: int, today: date, texts: Texts, details: dict[str, Any]) -> None:
    """Add ``notes/2024-03-05 budget.txt``: a date and a topic in the name, projects and people in the text."""
    while sum(path.startswith("notes/") for path in texts) < 2 * _SIZE[difficulty]:
        day, topic = a_day(rng, today - timedelta(days=400), today), rng.choice(TOPICS)
        path = f"notes/{day} {topic}.txt"
        project, person, city = rng.choice(PROJECTS), rng.choice(LAST_NAMES), rng.choice(CITIES)
        owed = rng.randint(2, 95) * 100
        texts[path] = (
            f"Minutes of {day}, {topic}\nProject: {project}\nPresent: {person}, {rng.choice(LAST_NAMES)}\n"
            f"Next meeting in {city}.\nAgreed budget: {owed}\n"
        )
        details[path] = {"day": day, "topic": topic, "project": project, "person": person, "budget": owed}


def logs(rng: Random, difficulty: int, today: date, texts: Texts, details: dict[str, Any]) -> None:
    """Add ``logs/2024-03-05.log``: one per day, lines with a time, a level, a service and a message."""
    for back in range(_SIZE[difficulty], 0, -1):
        day = today - timedelta(days=back)
        minutes = sorted(rng.sample(range(24 * 60), 6 + 4 * difficulty))
        lines = [
            f"{day} {minute // 60:02d}:{minute % 60:02d} {rng.choice(LEVELS)} {rng.choice(SERVICES)}: "
            f"request {rng.randint(1000, 9999)} {rng.choice(('done', 'repeated', 'late', 'refused', 'lost'))}"
            for minute in minutes
        ]
        texts[f"logs/{day}.log"] = "\n".join(lines) + "\n"


def sales(rng: Random, difficulty: int, today: date, texts: Texts, details: dict[str, Any]) -> None:
    """Add ``sales/Porto.csv``: one per city, rows with a date, an article, a quantity and an amount."""
    for city in rng.sample(CITIES, 1 + difficulty):
        rows = [
            [str(a_day(rng, today - timedelta(days=90), today)), rng.choice(GOODS), str(rng.randint(1, 40))]
            for _ in range(6 * difficulty + rng.randint(2, 6))
        ]
        rows = [[*row, f"{rng.randint(1000, 99999) / 100:.2f}"] for row in sorted(rows)]
        path = f"sales/{city}.csv"
        texts[path] = "day,article,pieces,amount\n" + "".join(",".join(row) + "\n" for row in rows)
        details[path] = rows


def settings(rng: Random, difficulty: int, today: date, texts: Texts, details: dict[str, Any]) -> None:
    """Add ``config/cache.ini``: one per service, with sections of keys and values."""
    for service in rng.sample(SERVICES, 2 * difficulty):
        values: dict[str, dict[str, Any]] = {
            "server": {"port": rng.randint(2000, 9000), "timeout": rng.randint(2, 60), "workers": rng.randint(1, 16)},
            "client": {"retries": rng.randint(0, 9), "timeout": rng.randint(61, 120)},
            "log": {"level": rng.choice(("debug", "info", "warn")), "keep_days": rng.randint(3, 60)},
        }
        texts[f"config/{service}.ini"] = "\n".join(
            f"[{section}]\n" + "".join(f"{key} = {value}\n" for key, value in keys.items())
            for section, keys in values.items()
        )
        details[f"config/{service}.ini"] = values


def drafts(rng: Random, difficulty: int, today: date, texts: Texts, details: dict[str, Any]) -> None:
    """Add ``drafts/draft_offer_Kim_2.txt``: kinds of letters to clients, in versions; some are already final."""
    paths: dict[str, None] = {}
    while len(paths) < 2 * _SIZE[difficulty]:
        folder = rng.choice(("drafts", "drafts/old", "drafts/2nd round")[:difficulty])
        state, kind = rng.choice(("draft", "draft", "final", "sent")), rng.choice(("offer", "letter", "contract"))
        paths[f"{folder}/{state}_{kind}_{rng.choice(LAST_NAMES)}_{rng.randint(1, 4)}.txt"] = None
    for path in paths:
        texts[path] = f"Dear {path.split('_')[2]},\nthis is about {rng.choice(GOODS)} for {rng.choice(CITIES)}.\n"


def copies(rng: Random, difficulty: int, today: date, texts: Texts, details: dict[str, Any]) -> None:
    """Add ``inbox/…txt``: letters, some of which are duplicates or near-duplicates under other names."""
    letters = [
        f"From: {rng.choice(LAST_NAMES)}\n{rng.randint(2, 90)} {rng.choice(GOODS)} to {rng.choice(CITIES)}, please.\n"
        for _ in range(_SIZE[difficulty])
    ]
    again = rng.sample(letters, 1 + difficulty)
    almost = [text.replace("please", "please!") for text in rng.sample(letters, difficulty)]
    several = [*letters, *again, *again[:difficulty], *almost]
    for number, text in zip(rng.sample(range(100, 1000), len(several)), several, strict=True):
        texts[f"inbox/scan{number}.txt"] = text


def chapters(rng: Random, difficulty: int, today: date, texts: Texts, details: dict[str, Any]) -> None:
    """Add ``book/chapter-2.txt``: numbered without zeros, so that 10 comes before 2 in a listing."""
    for number in range(1, {1: 5, 2: 11, 3: 16}[difficulty] + rng.randint(0, 2)):
        person, city = rng.choice(LAST_NAMES), rng.choice(CITIES)
        texts[f"book/chapter-{number}.txt"] = (
            f"Chapter {number}\nIn {city} {person} counted {rng.randint(3, 99)} {rng.choice(GOODS)}.\n"
        )
    for name in rng.sample(PROJECTS, 2):
        texts[f"book/{name.lower()}.txt"] = f"Ideas for {name}: {rng.randint(2, 20)} pages.\n"
