"""Task templates for the office folder: renaming, merging, extracting, adding up, sorting, finding."""

from __future__ import annotations

from datetime import date, timedelta
from decimal import Decimal
from pathlib import Path
from random import Random

from rllm_gym.envs.mcp.domains.files import office
from rllm_gym.envs.mcp.domains.files.office import FilesState
from rllm_gym.envs.mcp.task import Call, FinalAnswer, InfeasibleReport, SolutionStep, ToolTask, ToolTaskTemplate
from rllm_gym.envs.mcp.wording import listed


def _in(state: FilesState, folder: str) -> list[str]:
    """Return the files in and below a folder."""
    return sorted(path for path in state.texts if path.startswith(f"{folder}/"))


def _write(workspace: Path, path: str, text: str) -> None:
    (workspace / path).parent.mkdir(parents=True, exist_ok=True)
    (workspace / path).write_text(text)


def rename_drafts(state: FilesState, rng: Random, difficulty: int) -> ToolTask:
    names = [path for path in _in(state, "drafts") if Path(path).name.startswith("draft_")]
    example = Path(rng.choice(names or _in(state, "drafts"))).name
    old, kind = example.split("_")[:2]
    new = rng.choice(("review", "approved", "v2", "checked", "proof", "public", "signed", "next", "print", "copy"))
    chosen = [path for path in _in(state, "drafts") if Path(path).name.startswith(f"{old}_")]
    which = f"whose name begins with {old}_"
    if difficulty > 1:
        chosen = [path for path in chosen if Path(path).name.startswith(f"{old}_{kind}_")]
        which = f"whose name begins with {old}_{kind}_"
    where = "in the directory drafts" if difficulty == 1 else "in drafts and the directories below it"
    beginning = f"{old}_{kind}_" if difficulty > 1 else f"{old}_"
    becoming = f"{new}_{kind}_" if difficulty > 1 else f"{new}_"
    suffix = ".md" if difficulty > 2 else ".txt"
    goal = (
        f"Rename every file {where} {which}: the name shall begin with {becoming} instead of {beginning}"
        + (f" and end with {suffix} instead of .txt" if difficulty > 2 else "")
        + ". Each file stays in its directory, and the rest of its name stays as it is."
    )

    def renamed(path: str) -> str:
        parent, name = Path(path).parent, Path(path).name
        return str(parent / (becoming + name.removeprefix(beginning).removesuffix(".txt") + suffix))

    def outcome(state: FilesState, workspace: Path) -> None:
        for path in chosen:
            (workspace / path).rename(workspace / renamed(path))

    moves = [Call("move_file", {"source": path, "destination": renamed(path)}) for path in chosen]
    look = Call("search_files", {"pattern": f"{beginning}*", "path": "drafts"})
    return ToolTask(goal, (look, *moves, FinalAnswer()), outcome)


def merge_chapters(state: FilesState, rng: Random, difficulty: int) -> ToolTask:
    numbers = range(1, 1 + sum(Path(path).name.startswith("chapter-") for path in state.texts))
    first = 1 if difficulty == 1 else rng.randint(1, 3)
    last = len(numbers) - (0 if difficulty == 1 else rng.randint(0, 2))
    parts = [f"book/chapter-{number}.txt" for number in range(first, last + 1)]
    target = rng.choice(("book/whole.txt", "book/manuscript.txt", "all-chapters.txt", "book/print.txt", "reading.txt"))
    gap = rng.choice(("", "\n", "---\n"))
    between = {
        "": "directly one after the other",
        "\n": "with one empty line between two chapters",
        "---\n": "with a line of three hyphens (---) between two chapters",
    }[gap]
    delete = difficulty > 1
    goal = (
        f"Merge the chapters {first} to {last} of the directory book into one file {target}, in the order of their "
        f"numbers, {between} and nothing else added."
        + (" Then delete the files of the chapters that were merged." if delete else " Keep the files of the chapters.")
    )
    text = gap.join(state.texts[path] for path in parts)

    def outcome(state: FilesState, workspace: Path) -> None:
        _write(workspace, target, text)
        for path in parts if delete else ():
            (workspace / path).unlink()

    reads = [Call("read_text_file", {"path": path}) for path in parts]
    removals = [Call("delete_file", {"path": path}) for path in parts if delete]
    return ToolTask(
        goal, (*reads, Call("write_file", {"path": target, "content": text}), *removals, FinalAnswer()), outcome
    )


def extract_lines(state: FilesState, rng: Random, difficulty: int) -> ToolTask:
    files = _in(state, "logs")
    level = rng.choice(("ERROR", "WARN"))
    service = ""
    if difficulty == 3:
        files = files[rng.randint(0, 4) : len(files) - rng.randint(0, 4)]
        service = rng.choice(("billing", "cache", "gateway"))
    lines = [
        line
        for path in files
        for line in state.texts[path].splitlines()
        if f" {level} " in line and f" {service}" in line
    ]
    if not lines:  # no such lines in this week: its ordinary lines are used instead
        level, service = "INFO", ""
        lines = [line for path in files for line in state.texts[path].splitlines() if " INFO " in line]
    days = f"{Path(files[0]).stem} to {Path(files[-1]).stem}"
    target = rng.choice(("extract.txt", f"{level.lower()}s.txt", "logs/extract.txt", "found.log", "report.txt"))
    goal = (
        f"Collect all lines with the level {level}{f' of the service {service}' if service else ''} from the log files "
        f"of the days {days} (both included) in a new file {target}: the lines as they are, in order of time."
    )
    text = "\n".join(lines) + "\n"

    def outcome(state: FilesState, workspace: Path) -> None:
        _write(workspace, target, text)

    reads = [Call("read_text_file", {"path": path}) for path in files]
    return ToolTask(goal, (*reads, Call("write_file", {"path": target, "content": text}), FinalAnswer()), outcome)


def sum_column(state: FilesState, rng: Random, difficulty: int) -> ToolTask:
    files = _in(state, "sales")
    column, position = rng.choice((("pieces", 2), ("amount", 3)))
    if difficulty == 1:
        files = [rng.choice(files)]
    rows = [row for path in files for row in state.details[path]]
    article, day = rng.choice(rows)[1], rng.choice(rows)[0]
    which = f"the article {article}"
    rows = [row for row in rows if row[1] == article]
    if difficulty > 2:
        day = min(day, max(row[0] for row in rows))
        rows = [row for row in rows if row[0] >= day]
        which += f" on {day} or later"
    total = sum(Decimal(row[position]) for row in rows)
    where = f"the file {files[0]}" if difficulty == 1 else "all files of the directory sales together"
    goal = rng.choice(
        (
            f"What is the sum of the column {column} over the rows for {which} in {where}? Answer with the number.",
            f"Add up the column {column} of {where}, only rows for {which}, and answer with the total.",
        )
    )
    reads: list[SolutionStep] = [Call("list_directory", {"path": "sales"})]
    reads += [Call("read_text_file", {"path": path}) for path in files]
    answer = {"type": "number", "value": float(total), "tolerance": 0.001}
    return ToolTask(goal, (*reads, FinalAnswer(str(total))), answer=answer)


def archive_notes(state: FilesState, rng: Random, difficulty: int) -> ToolTask:
    paths = _in(state, "notes")
    before = state.details[rng.choice(paths)]["day"] + timedelta(days=1)
    topic = state.details[rng.choice(paths)]["topic"]
    chosen = [path for path in paths if state.details[path]["day"] < before]
    which = f"dated before {before}"
    if difficulty > 2:
        chosen = [path for path in chosen if state.details[path]["topic"] != topic]
        which += f", except those about {topic},"
    if not chosen:
        chosen, which = paths, "of any date"
    by_month = difficulty > 1

    def place(path: str) -> str:
        day: date = state.details[path]["day"]
        return f"archive/{day:%Y/%m}/{Path(path).name}" if by_month else f"archive/{day:%Y}/{Path(path).name}"

    example = "archive/YYYY/MM" if by_month else "archive/YYYY"
    goal = (
        f"Move every note in the directory notes {which} into {example} (the year{' and month' if by_month else ''} in "
        "the file's name), keeping the file names. Make the directories that are missing."
    )

    def outcome(state: FilesState, workspace: Path) -> None:
        for path in chosen:
            (workspace / place(path)).parent.mkdir(parents=True, exist_ok=True)
            (workspace / path).rename(workspace / place(path))

    folders = sorted({str(Path(place(path)).parent) for path in chosen})
    makes = [Call("create_directory", {"path": folder}) for folder in folders]
    moves = [Call("move_file", {"source": path, "destination": place(path)}) for path in chosen]
    look = Call("list_directory", {"path": "notes"})
    return ToolTask(goal, (look, *makes, *moves, FinalAnswer()), outcome)


def remove_duplicates(state: FilesState, rng: Random, difficulty: int) -> ToolTask:
    paths = _in(state, "inbox")
    keep_first = rng.random() < 0.5
    ordered = paths if keep_first else paths[::-1]
    kept: dict[str, str] = {}
    extra = [path for path in ordered if kept.setdefault(state.texts[path], path) != path]
    end = "lowest" if keep_first else "highest"
    goal = rng.choice(
        (
            f"Some of the {len(paths)} letters in the directory inbox are there several times under different names, "
            f"with exactly the same text. Of each such letter keep only the file whose number is {end} and delete the "
            "others. Letters that differ in any character are different.",
            f"Clean up the {len(paths)} files of the directory inbox: of files with exactly the same text, only the "
            f"one with the {end} number stays. Files that differ in a single character both stay.",
        )
    )

    def outcome(state: FilesState, workspace: Path) -> None:
        for path in extra:
            (workspace / path).unlink()

    reads = [Call("read_text_file", {"path": path}) for path in paths]
    removals = [Call("delete_file", {"path": path}) for path in extra]
    return ToolTask(goal, (*reads, *removals, FinalAnswer()), outcome)


def find_note(state: FilesState, rng: Random, difficulty: int) -> ToolTask:
    paths = _in(state, "notes")
    example = state.details[rng.choice(paths)]
    project = example["project"]
    found = [path for path in paths if state.details[path]["project"] == project]
    reads = [Call("read_text_file", {"path": path}) for path in paths]
    if difficulty == 1:
        goal = (
            f'Which notes in the directory notes are about the project {project} (the line "Project:")? Answer with '
            "the file names, without the directory."
        )
        names = [Path(path).name for path in found]
        return ToolTask(goal, (*reads, FinalAnswer("\n".join(names))), answer={"type": "set", "value": names})
    total = sum(state.details[path]["budget"] for path in found)
    latest = max(found, key=lambda path: (state.details[path]["day"], path))
    only_last = (
        difficulty == 2 and sum(state.details[path]["day"] == state.details[latest]["day"] for path in found) == 1
    )
    value = state.details[latest]["budget"] if only_last else total
    goal = (
        f"What budget was agreed in the most recent note about the project {project} in the directory notes?"
        if only_last
        else f"What do the agreed budgets of all notes about the project {project} in the directory notes add up to?"
    ) + " Answer with the number."
    return ToolTask(goal, (*reads, FinalAnswer(str(value))), answer={"type": "number", "value": value})


def change_setting(state: FilesState, rng: Random, difficulty: int) -> ToolTask:
    paths = _in(state, "config")
    chosen = sorted(rng.sample(paths, difficulty))
    section, old = rng.choice(("server", "client")), "timeout"
    value = rng.randint(130, 900)
    goal = (
        f"Set {old} in the section [{section}] to {value} in {listed(chosen)}. Change nothing else in "
        f"{'that file' if len(chosen) == 1 else 'those files'}."
    )

    def block(path: str) -> tuple[str, str]:
        """Return a part of the file that occurs once, before and after the change."""
        keys = state.details[path][section]
        before = f"[{section}]\n"
        for key, current in keys.items():
            if key == old:
                return f"{before}{old} = {current}\n", f"{before}{old} = {value}\n"
            before += f"{key} = {current}\n"
        raise KeyError(old)

    def outcome(state: FilesState, workspace: Path) -> None:
        for path in chosen:
            _write(workspace, path, state.texts[path].replace(*block(path)))

    pieces = [(path, *block(path)) for path in chosen]
    edits = [Call("edit_file", {"path": path, "old_text": was, "new_text": new}) for path, was, new in pieces]
    reads = [Call("read_text_file", {"path": path}) for path in chosen]
    return ToolTask(goal, (*reads, *edits, FinalAnswer()), outcome)


def split_table(state: FilesState, rng: Random, difficulty: int) -> ToolTask:
    path = rng.choice(_in(state, "sales"))
    rows = state.details[path]
    articles = sorted({row[1] for row in rows})
    chosen = sorted(rng.sample(articles, min(difficulty, len(articles))))
    goal = (
        f"From {path}, write the rows for {listed(chosen)} into a file of their own for each article: "
        f"by-article/{chosen[0]}.csv{' and so on' if len(chosen) > 1 else ''}, with the same heading and the rows as "
        "they are and in the same order. The original stays as it is."
    )
    heading = state.texts[path].splitlines(keepends=True)[0]
    texts = {
        f"by-article/{article}.csv": heading + "".join(",".join(row) + "\n" for row in rows if row[1] == article)
        for article in chosen
    }

    def outcome(state: FilesState, workspace: Path) -> None:
        for target, text in texts.items():
            _write(workspace, target, text)

    first: list[SolutionStep] = [
        Call("read_text_file", {"path": path}),
        Call("create_directory", {"path": "by-article"}),
    ]
    writes = [Call("write_file", {"path": target, "content": text}) for target, text in texts.items()]
    return ToolTask(goal, (*first, *writes, FinalAnswer()), outcome)


def one_file(state: FilesState, rng: Random, difficulty: int) -> ToolTask:
    """Create a task; half of these files do not exist, though others have nearly the same name."""
    paths = _in(state, "notes")
    near, _ = rng.sample(paths, 2)  # draws two, so that the goal of a seed stays the same
    feasible = rng.random() < 0.5
    day: date = state.details[near]["day"]
    path = near
    while not feasible and path in paths:
        day += timedelta(days=1)
        path = f"notes/{day} {state.details[near]['topic']}.txt"
    line, renamed = f"Agreed budget: {rng.randint(2, 95) * 100 + 50}", f"{path.removesuffix('.txt')} (old).txt"
    old = f"Agreed budget: {state.details[near]['budget']}"
    goal, right = rng.choice(
        (
            (
                f'In the file {path}, change the line with the agreed budget to "{line}".',
                Call("edit_file", {"path": path, "old_text": old, "new_text": line}),
            ),
            (f"Delete the file {path}.", Call("delete_file", {"path": path})),
            (f"Rename the file {path} to {renamed}.", Call("move_file", {"source": path, "destination": renamed})),
        )
    )
    goal += " If there is no such file, this cannot be done."
    look = Call("search_files", {"pattern": f"*{state.details[near]['topic']}.txt", "path": "notes"})
    if not feasible:
        return ToolTask(goal, (look, InfeasibleReport(f"There is no file {path}.")), infeasible=True)

    def outcome(state: FilesState, workspace: Path) -> None:
        if right.tool == "edit_file":
            _write(workspace, path, state.texts[path].replace(old, line))
        elif right.tool == "delete_file":
            (workspace / path).unlink()
        else:
            (workspace / path).rename(workspace / renamed)

    return ToolTask(goal, (look, right, FinalAnswer()), outcome)


_SOME_NOTES = office.office(office.notes)

TEMPLATES = (
    ToolTaskTemplate("files/rename", office.office(office.drafts), rename_drafts),
    ToolTaskTemplate("files/merge", office.office(office.chapters), merge_chapters),
    ToolTaskTemplate("files/extract-lines", office.office(office.logs), extract_lines),
    ToolTaskTemplate("files/sum-column", office.office(office.sales), sum_column),
    ToolTaskTemplate("files/archive-by-date", _SOME_NOTES, archive_notes),
    ToolTaskTemplate("files/deduplicate", office.office(office.copies), remove_duplicates),
    ToolTaskTemplate("files/find", _SOME_NOTES, find_note),
    ToolTaskTemplate("files/change-setting", office.office(office.settings), change_setting),
    ToolTaskTemplate("files/split-table", office.office(office.sales), split_table),
    ToolTaskTemplate("files/one-file", _SOME_NOTES, one_file),
)
