"""Measure the creation of a new workspace: a session's overlay against copying, cloning and worktrees.

    python benchmarks/workspace_reset.py            # prints the table; --write also writes it to benchmarks/results

The repository is created here: 2,500 files, 50 MB, in one commit, below the system's temporary directory. The methods
alternate in every round, so that all run under the same conditions. Each creates a workspace in which a file can be
edited, and is timed until it is ready; *first edit* adds appending a line to a file (in the session, by a shell
command), and *removal* is the time until it is completely removed. Before each round, ``sync`` writes out the data of
the previous one.

Only the session is safe for a model's commands: it runs processes in isolation, the other methods only create files.
"""

from __future__ import annotations

import argparse
import os
import platform
import random
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from rllm_gym.sandbox import SandboxPool, SandboxSession

FILES, TOTAL_MB = 2500, 50
ROUNDS = 20
SLOW_ROUNDS = 2
EDITED = "package_7/module_7.py"
RESULT = Path(__file__).resolve().parent / "results" / "workspace_reset.md"


class Method:
    """One method of creating a new workspace.

    Attributes:
        name: Its name in the table.
        rounds: Number of rounds in which it takes part.
        times: Seconds to create one, with the first edit, and to remove it, one entry per round.
    """

    def __init__(
        self, name: str, rounds: int, make: Callable[[], object], edit: Callable[[object], object],
        remove: Callable[[object], object],
    ) -> None:  # fmt: skip
        self.name, self.rounds = name, rounds
        self._make, self._edit, self._remove = make, edit, remove
        self.times: list[tuple[float, float, float]] = []

    def take_turn(self) -> None:
        started = time.perf_counter()
        created = self._make()
        there = time.perf_counter()
        self._edit(created)
        edited = time.perf_counter()
        self._remove(created)
        self.times.append((there - started, edited - started, time.perf_counter() - edited))


def git(folder: Path, *arguments: str) -> None:
    name = ("-c", "user.name=x", "-c", "user.email=x@example.org", "-c", "gc.auto=0")
    subprocess.run(["git", "-C", str(folder), *name, *arguments], check=True, capture_output=True)


def make_repository(folder: Path) -> None:
    """Create 2,500 files of text that is not highly compressible, in one commit."""
    draw = random.Random(0)
    size = TOTAL_MB * 1_000_000 // FILES
    folder.mkdir()
    for number in range(FILES):
        path = folder / f"package_{number % 50}" / f"module_{number}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"# " + draw.randbytes(size // 2).hex().encode()[: size - 3] + b"\n")
    git(folder, "init", "-q")
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "base")


def append(path: Path) -> None:
    with open(path, "a") as file:
        file.write("edited\n")


def methods(repository: Path, disk: Path, memory: Path, warm: SandboxPool, cold: SandboxPool) -> list[Method]:
    """Return the methods; ``disk`` and ``memory`` are directories for workspaces, on a disk and on a tmpfs."""

    def copied(to: Path) -> object:
        subprocess.run(["cp", "-a", str(repository), str(to)], check=True)
        return to

    def cloned() -> object:
        git(disk, "clone", "-q", "--shared", str(repository), "clone")
        return disk / "clone"

    def worktree() -> object:
        git(repository, "worktree", "add", "-q", "--detach", str(disk / "tree"))
        return disk / "tree"

    def edit(workspace: object) -> None:
        assert isinstance(workspace, Path)
        append(workspace / EDITED)

    def remove_folder(workspace: object) -> None:
        assert isinstance(workspace, Path)
        shutil.rmtree(workspace)

    def remove_worktree(workspace: object) -> None:
        git(repository, "worktree", "remove", "--force", str(workspace))

    def edit_inside(session: object) -> None:
        assert isinstance(session, SandboxSession)
        assert session.exec_sync(f"echo edited >> {EDITED}").exit_code == 0

    def close(session: object) -> None:
        assert isinstance(session, SandboxSession)
        session.close_sync()

    return [
        Method(
            "**session, from the warm pool**", ROUNDS, lambda: warm.open_session_sync(repository), edit_inside, close
        ),
        Method("session, without a warm pool", ROUNDS, lambda: cold.open_session_sync(repository), edit_inside, close),
        Method("`cp -a` to a tmpfs", SLOW_ROUNDS, lambda: copied(memory / "copy"), edit, remove_folder),
        Method("`cp -a` to the disk", SLOW_ROUNDS, lambda: copied(disk / "copy"), edit, remove_folder),
        Method("`git clone --shared`", SLOW_ROUNDS, cloned, edit, remove_folder),
        Method("`git worktree add`", SLOW_ROUNDS, worktree, edit, remove_worktree),
    ]


def measure() -> str:
    """Return the table, as Markdown."""
    memory = Path("/dev/shm")
    with (
        tempfile.TemporaryDirectory(prefix="workspace-reset-") as disk,
        tempfile.TemporaryDirectory(prefix="workspace-reset-", dir=memory) as shm,
        SandboxPool("namespaces") as warm,
        SandboxPool("namespaces") as cold,
    ):
        cold._sessions.spares = 0  # type: ignore[union-attr]
        repository = Path(disk) / "repository"
        make_repository(repository)
        contestants = methods(repository, Path(disk), Path(shm), warm, cold)
        with warm.open_session_sync(repository) as session:
            overlay = session.overlay  # type: ignore[attr-defined]
        for number in range(ROUNDS):
            os.sync()
            for method in contestants:
                if number < method.rounds:
                    method.take_turn()
    lines = [
        "| way | p50 | p99 | with the first edit, p50 | removal, p50 | p50 / session |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    ours = statistics.median(created for created, _, _ in contestants[0].times)
    for method in contestants:
        created = sorted(times[0] for times in method.times)
        late = created[min(len(created) - 1, int(0.99 * len(created)))]
        medians = [statistics.median(column) for column in zip(*method.times)]
        ratio = medians[0] / ours
        cells = (f"{1000 * s:.1f} ms" for s in (medians[0], late, medians[1], medians[2]))
        lines.append(f"| {method.name} | {' | '.join(cells)} | {ratio:.1f} × |")
    who = "root" if os.geteuid() == 0 else "an unprivileged user"
    about = (
        f"{FILES} files, {TOTAL_MB} MB, one commit; {ROUNDS} rounds ({SLOW_ROUNDS} of the slow methods, whose "
        f"p99 is their maximum). Overlay: {'yes' if overlay else 'no, copied'}. Linux {platform.release()}, "
        f"{os.cpu_count()} processors, load {os.getloadavg()[0]:.1f}, {who}."
    )
    return "\n".join(
        ["# Creation of a new workspace", "", "`python benchmarks/workspace_reset.py --write`", "", about, "", *lines]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help=f"also write {RESULT.name} into benchmarks/results")
    arguments = parser.parse_args()
    text = measure()
    print(text)
    if arguments.write:
        RESULT.write_text(text + "\n")


if __name__ == "__main__":
    main()
