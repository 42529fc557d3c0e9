"""A lending library's database: members, books, and loans."""

from __future__ import annotations

from datetime import date, timedelta
from pathlib import Path
from random import Random

from rllm_gym.envs.mcp.domains.sqlite.state import DatabaseState, asked, by_id, edited, executed
from rllm_gym.envs.mcp.task import Call, ToolTask, ToolTaskTemplate
from rllm_gym.envs.mcp.wording import CITIES, LAST_NAMES, a_day, a_today, email_of, listed, people, words

SCHEMA = """
CREATE TABLE members (id INTEGER PRIMARY KEY, name TEXT NOT NULL, email TEXT NOT NULL, branch TEXT NOT NULL,
    joined_on TEXT NOT NULL);
CREATE TABLE books (id INTEGER PRIMARY KEY, title TEXT NOT NULL UNIQUE, author TEXT NOT NULL, genre TEXT NOT NULL,
    available INTEGER NOT NULL);
CREATE TABLE loans (id INTEGER PRIMARY KEY, member_id INTEGER NOT NULL REFERENCES members(id),
    book_id INTEGER NOT NULL REFERENCES books(id), loaned_on TEXT NOT NULL, due_on TEXT NOT NULL, returned_on TEXT);
"""
GENRES = ("crime", "fantasy", "history", "poetry", "science", "travel")
_ADJECTIVES = words("Quiet Hidden Last Silver Broken Distant Burning Forgotten Winter Paper Glass Northern")
_NOUNS = words("River Garden Letter Harbour Clock Island Mirror Forest Station Orchard Bridge Lighthouse")
_SIZES = {1: (10, 20, 30), 2: (25, 50, 100), 3: (50, 90, 240)}
_LOAN_DAYS = 28


def build(seed: int, difficulty: int) -> DatabaseState:
    rng = Random(f"sqlite/library/{seed}/{difficulty}")
    member_count, book_count, loan_count = _SIZES[difficulty]
    today = a_today(rng)
    branches = rng.sample(CITIES, 2 + difficulty)
    members = [
        {
            "id": number,
            "name": name,
            "email": email_of(name),
            "branch": rng.choice(branches),
            "joined_on": a_day(rng, today - timedelta(days=900), today - timedelta(days=300)).isoformat(),
        }
        for number, name in enumerate(people(rng, member_count), start=201)
    ]
    titles = rng.sample([f"The {adjective} {noun}" for adjective in _ADJECTIVES for noun in _NOUNS], book_count)
    books = [
        {
            "id": number,
            "title": title,
            "author": rng.choice(LAST_NAMES),
            "genre": rng.choice(GENRES),
            "available": rng.randint(1, 4),
        }
        for number, title in enumerate(titles, start=1)
    ]
    loans = []
    out: set[tuple[int, int]] = set()  # a member never has the same book out twice
    days = sorted(a_day(rng, today - timedelta(days=200), today) for _ in range(loan_count))
    for number, day in enumerate(days, start=1):
        member, book = rng.randint(201, 200 + member_count), rng.randint(1, book_count)
        due = day + timedelta(days=_LOAN_DAYS)
        returned: date | None = a_day(rng, day, min(today, due + timedelta(days=10)))
        # The oldest loan is never returned, so that every library has an overdue loan.
        if (number == 1 or rng.random() < 0.35) and (member, book) not in out:
            out.add((member, book))
            returned = None
        loans.append(
            {
                "id": number,
                "member_id": member,
                "book_id": book,
                "loaned_on": day.isoformat(),
                "due_on": due.isoformat(),
                "returned_on": returned and returned.isoformat(),
            }
        )
    return DatabaseState(SCHEMA, {"members": members, "books": books, "loans": loans}, today)


def overdue(state: DatabaseState, rng: Random, difficulty: int) -> ToolTask:
    members, books = by_id(state.rows["members"]), by_id(state.rows["books"])
    today = state.today.isoformat()
    late = [loan for loan in state.rows["loans"] if loan["returned_on"] is None and loan["due_on"] < today]
    example = rng.choice(late)
    branch, genre = members[example["member_id"]]["branch"], books[example["book_id"]]["genre"]
    found = [loan for loan in late if members[loan["member_id"]]["branch"] == branch]
    where, kind = f"m.branch = '{branch}'", "books"
    if difficulty > 1:
        found = [loan for loan in found if books[loan["book_id"]]["genre"] == genre]
        where += f" AND b.genre = '{genre}'"
        kind = f"{genre} books"
    titles = sorted({books[loan["book_id"]]["title"] for loan in found})
    goal = rng.choice(
        (
            f"Today is {today}. Which {kind} should members of the branch {branch} have brought back before today, and "
            "have not? Answer with the titles.",
            f"It is {today}. List the titles of the {kind} that are overdue (due before today, not returned) and on "
            f"loan to members of the {branch} branch.",
        )
    )
    query = (
        "SELECT DISTINCT b.title FROM loans l JOIN members m ON m.id = l.member_id JOIN books b ON b.id = l.book_id "
        f"WHERE {where} AND l.returned_on IS NULL AND l.due_on < '{today}'"
    )
    return ToolTask(goal, asked(query, ", ".join(titles)), answer={"type": "set", "value": titles})


def return_books(state: DatabaseState, rng: Random, difficulty: int) -> ToolTask:
    members, books = by_id(state.rows["members"]), by_id(state.rows["books"])
    out = [loan for loan in state.rows["loans"] if loan["returned_on"] is None]
    member = members[rng.choice(out)["member_id"]]
    theirs = [loan for loan in out if loan["member_id"] == member["id"]]
    brought = theirs if difficulty == 1 else rng.sample(theirs, rng.randint(1, len(theirs)))
    today = state.today.isoformat()
    titles = sorted(books[loan["book_id"]]["title"] for loan in brought)
    what = "every book they have on loan" if len(brought) == len(theirs) else listed([f'"{title}"' for title in titles])
    goal = (
        f"{member['name']} ({member['email']}) has brought back {what} today, {today}. Enter the return in the loans "
        "and add one to the available copies of each book that came back."
    )
    statements = []
    for loan in sorted(brought, key=lambda loan: loan["id"]):
        statements.append(f"UPDATE loans SET returned_on = '{today}' WHERE id = {loan['id']}")
        statements.append(f"UPDATE books SET available = available + 1 WHERE id = {loan['book_id']}")

    look = Call(
        "read_query",
        {
            "query": "SELECT l.id, b.id, b.title FROM loans l JOIN books b ON b.id = l.book_id "
            f"WHERE l.member_id = {member['id']} AND l.returned_on IS NULL"
        },
    )
    # Also changes loans that were returned long ago.
    return ToolTask(goal, (look, *edited(*statements)), executed(statements))


def extend_loans(state: DatabaseState, rng: Random, difficulty: int) -> ToolTask:
    members, books = by_id(state.rows["members"]), by_id(state.rows["books"])
    out = [loan for loan in state.rows["loans"] if loan["returned_on"] is None]
    example = rng.choice(out)
    branch, genre = members[example["member_id"]]["branch"], books[example["book_id"]]["genre"]
    days = rng.choice((7, 10, 14, 21, 28))
    chosen = [loan for loan in out if members[loan["member_id"]]["branch"] == branch]
    where = f"member_id IN (SELECT id FROM members WHERE branch = '{branch}')"
    of_what = ""
    if difficulty > 1:
        chosen = [loan for loan in chosen if books[loan["book_id"]]["genre"] == genre]
        where += f" AND book_id IN (SELECT id FROM books WHERE genre = '{genre}')"
        of_what = f" of {genre} books"
    if difficulty > 2:
        since = example["loaned_on"]
        chosen = [loan for loan in chosen if loan["loaned_on"] >= since]
        where += f" AND loaned_on >= '{since}'"
        of_what += f" that began on {since} or later"
    goal = rng.choice(
        (
            f"The {branch} branch is closed for a while: of all its members' loans{of_what}, those that have not been "
            f"returned are due {days} days later than planned. Enter that.",
            f"Give members of the branch {branch} {days} more days for their loans{of_what}: add them to the due date "
            "wherever the book has not been returned.",
        )
    )

    def outcome(state: DatabaseState, workspace: Path) -> None:
        for loan in chosen:
            due = (date.fromisoformat(loan["due_on"]) + timedelta(days=days)).isoformat()
            state.database.execute("UPDATE loans SET due_on = ? WHERE id = ?", (due, loan["id"]))

    change = f"UPDATE loans SET due_on = date(due_on, '+{days} days') WHERE {where} AND returned_on IS NULL"
    return ToolTask(goal, edited(change), outcome)


def merge_members(state: DatabaseState, rng: Random, difficulty: int) -> ToolTask:
    with_loans = sorted({loan["member_id"] for loan in state.rows["loans"]})
    pairs = [rng.sample(with_loans, 2) for _ in range(40)]
    chosen: list[tuple[int, int]] = []
    for kept, dropped in pairs:
        if len(chosen) < difficulty and not {kept, dropped} & {number for pair in chosen for number in pair}:
            chosen.append((min(kept, dropped), max(kept, dropped)))
    members = by_id(state.rows["members"])
    description = [f"{members[dropped]['email']} into {members[kept]['email']}" for kept, dropped in chosen]
    goal = (
        "Some people have two accounts. Merge these members, named by their e-mail addresses: "
        f"{'; '.join(description)}. To merge A into B, give all loans of A to B, keep B as it is but with the "
        f"earlier of the two dates of joining, and delete A."
    )
    statements = []
    for kept, dropped in chosen:
        joined = min(members[kept]["joined_on"], members[dropped]["joined_on"])
        statements.append(f"UPDATE loans SET member_id = {kept} WHERE member_id = {dropped}")
        statements.append(f"UPDATE members SET joined_on = '{joined}' WHERE id = {kept}")
        statements.append(f"DELETE FROM members WHERE id = {dropped}")

    kept, dropped = chosen[-1]
    return ToolTask(goal, edited(*statements), executed(statements))


TEMPLATES = (
    ToolTaskTemplate("sqlite/overdue", build, overdue),
    ToolTaskTemplate("sqlite/return-books", build, return_books),
    ToolTaskTemplate("sqlite/extend-loans", build, extend_loans),
    ToolTaskTemplate("sqlite/merge-members", build, merge_members),
)
