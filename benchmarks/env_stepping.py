"""Measure the time per step: a FrozenLake and a Math environment against the closest ones of GEM and reasoning-gym.

    python benchmarks/env_stepping.py            # prints the table; --write also writes it to benchmarks/results

The peers run in their own virtual environment, ``.venvs/peers``, created on the first run (``gem-llm==0.1.0``, which
installs ``reasoning-gym``; no torch). Both sides answer the same request alternately for many rounds. Times are
processor time, and the median of the rounds counts. Two figures:

- *step*: ``step()`` alone, on environments that were reset before;
- *turn*: an episode (``reset()`` and its steps) divided by its steps. A single-turn environment needs a reset for every
  step, so this is the cost in a rollout.

GEM has no FrozenLake: its closest environments move a player (Sokoban) or a tile (2 × 2 puzzle) up, down, left or
right. reasoning-gym has no environments: GEM's wrapper creates them from its data sets. Rows without a wrapper are the
bare ``score_answer`` of the data set, which parses no reply, keeps no episode and has no observation (in brackets, not
compared). GEM's ``rg:`` environments compare the boxed text with the gold text as strings, and draw a new problem at
every reset; ``rllm/Math-v0`` and GEM's MathEnv decide mathematical equality and take problems from the same list.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PEERS = ROOT / ".venvs" / "peers"
# gem's math environment imports the last two without declaring them as dependencies.
REQUIREMENTS = ("gem-llm==0.1.0", "datasets", "pylatexenc")
PROBLEMS = [
    {"question": f"Anna has {a} apples and buys {b} more. How many has she?", "answer": str(a + b)}
    for a in range(3, 43)
    for b in (5, 12, 31)
]
TURNS = 8
# An episode of moves has many steps: the step counts. A single-turn environment cannot step twice: the turn counts.
COUNTS = {"moves": 0, "math": 1}


@dataclass(frozen=True)
class Case:
    """One environment to measure, and the side that runs it.

    Attributes:
        group: ``"moves"`` or ``"math"``.
        name: Its name in the table.
        side: ``"ours"`` or ``"peers"``.
        nearest: Whether it is comparable to ours; the others are printed for completeness and not compared.
    """

    group: str
    name: str
    side: str
    nearest: bool = True


CASES = (
    Case("moves", "rllm/FrozenLake-v0", "ours"),
    Case("moves", "gem game:FifteenPuzzle-v0-easy", "peers"),
    Case("moves", "gem game:Sokoban-v0-easy", "peers"),
    Case("moves", "reasoning-gym sokoban (whole solution)", "peers", nearest=False),
    Case("math", "rllm/Math-v0", "ours"),
    Case("math", "rllm/Math-v0, generated word problems", "ours", nearest=False),
    Case("math", "gem MathEnv, same problems", "peers"),
    Case("math", "gem rg:chain_sum", "peers"),
    Case("math", "gem rg:gsm_symbolic", "peers"),
    Case("math", "reasoning-gym chain_sum, score_answer", "peers", nearest=False),
)

Timer = Callable[[int], float]


def seconds(work: Callable[[], None]) -> float:
    begin = time.process_time()
    work()
    return time.process_time() - begin


# Each factory returns two timers: of n steps, and of n turns (with their share of resets). Both return seconds.


def moves(make_endless: Callable[[], Any], make: Callable[[], Any], replies: tuple[str, str]) -> tuple[Timer, Timer]:
    """Move back and forth on a board, in an endless episode and in episodes of a few turns."""
    endless, short = make_endless(), make()
    endless.max_turns = 10**9
    endless.reset()

    def steps(n: int) -> None:
        step, (there, back) = endless.step, replies
        for _ in range(n // 2):
            step(there)
            step(back)

    def turns(n: int) -> None:
        over, turn = True, 0
        for i in range(n):
            if over or turn == TURNS:
                short.reset()
                turn = 0
            _, _, terminated, truncated, _ = short.step(replies[i % 2])
            over = terminated or truncated
            turn += 1

    return lambda n: seconds(lambda: steps(n)), lambda n: seconds(lambda: turns(n))


def single_turn(make: Callable[[], Any], reply: Callable[[Any], str], copies: int = 100) -> tuple[Timer, Timer]:
    """Give correct answers to many problems, one step each."""
    envs = [make() for _ in range(copies)]

    def steps(n: int) -> float:
        total = 0.0
        for _ in range(n // copies):
            for env in envs:
                env.reset()
            replies = [reply(env) for env in envs]

            def batch(replies: list[str] = replies) -> None:
                for env, text in zip(envs, replies):
                    env.step(text)

            total += seconds(batch)
        return total

    def turns(n: int) -> None:
        env = envs[0]
        for _ in range(n):
            env.reset()
            env.step(reply(env))

    return steps, lambda n: seconds(lambda: turns(n))


def boxed(answer: str) -> str:
    return f"Adding the numbers up gives the total.\nThe answer is \\boxed{{{answer}}}."


def ours() -> dict[str, tuple[Timer, Timer]]:
    import gymnasium

    import rllm_gym

    assert rllm_gym.__version__
    lake = [{"map": ["SFFF", "FFFF", "FFFF", "FFFG"]}]

    def open_lake() -> Any:
        return gymnasium.make("rllm/FrozenLake-v0", tasks=lake).unwrapped

    def drawn_lakes() -> Any:
        # Without holes, so that episodes are as long as the puzzle's.
        return gymnasium.make("rllm/FrozenLake-v0", p_frozen=1.0).unwrapped

    def arithmetic() -> Any:
        return gymnasium.make("rllm/Math-v0", tasks=PROBLEMS).unwrapped

    def word_problems() -> Any:
        return gymnasium.make("rllm/Math-v0", families=["word_problems"]).unwrapped

    prose = "The goal lies below.\n"
    return {
        "rllm/FrozenLake-v0": moves(open_lake, drawn_lakes, (f"{prose}```down```", f"{prose}```up```")),
        "rllm/Math-v0": single_turn(arithmetic, lambda env: boxed(env.task.data["gold"])),
        "rllm/Math-v0, generated word problems": single_turn(word_problems, lambda env: boxed(env.task.data["gold"])),
    }


def peers() -> dict[str, tuple[Timer, Timer]]:
    import logging

    logging.disable(logging.CRITICAL)
    import gem
    import reasoning_gym
    from gem_math import gem_math

    prose = "The goal lies below.\n"
    replies = (f"{prose}\\boxed{{down}}", f"{prose}\\boxed{{up}}")
    cases = {
        f"gem {game}": moves(lambda game=game: gem.make(game), lambda game=game: gem.make(game), replies)
        for game in ("game:FifteenPuzzle-v0-easy", "game:Sokoban-v0-easy")
    }
    cases |= {
        "gem MathEnv, same problems": single_turn(gem_math(PROBLEMS), lambda env: boxed(env.answer)),
    }
    for name in ("chain_sum", "gsm_symbolic"):
        cases[f"gem rg:{name}"] = single_turn(
            lambda name=name: gem.make(f"rg:{name}", size=10**6), lambda env: boxed(env.data["answer"])
        )
    for title, name in (
        ("reasoning-gym sokoban (whole solution)", "sokoban"),
        ("reasoning-gym chain_sum, score_answer", "chain_sum"),
    ):
        dataset = reasoning_gym.create_dataset(name, size=20, seed=0)
        entries = list(dataset)

        def score(n: int, dataset: Any = dataset, entries: Any = entries) -> float:
            def work() -> None:
                for i in range(n):
                    entry = entries[i % len(entries)]
                    dataset.score_answer(entry["answer"], entry)

            return seconds(work)

        cases[title] = (score, score)
    return cases


def work_for(side: str) -> None:
    """Run a worker: read ``{"case", "figure", "n"}`` from each line, answer with seconds."""
    timers = ours() if side == "ours" else peers()
    print(json.dumps(sorted(timers)), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        timer = timers[request["case"]][request["figure"]]
        print(json.dumps(timer(request["n"])), flush=True)


class Worker:
    """A process of one side. Ends with the ``with`` block."""

    def __init__(self, python: Path, side: str) -> None:
        self.process = subprocess.Popen(
            [python, __file__, "--worker", side],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL if side == "peers" else None,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"},
        )
        self.names = json.loads(self._answer())

    def ask(self, case: str, figure: int, n: int) -> float:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"case": case, "figure": figure, "n": n}) + "\n")
        self.process.stdin.flush()
        return float(json.loads(self._answer()))

    def _answer(self) -> str:
        assert self.process.stdout is not None
        # GEM prints lines that are not JSON.
        for line in self.process.stdout:
            if line[:1] in "[0123456789":
                return line
        raise RuntimeError(f"a worker process exited (status {self.process.wait()})")

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()


def peers_python() -> Path:
    python = PEERS / "bin" / "python"
    if not (PEERS / "ready").is_file():
        print(f"creating {PEERS.relative_to(ROOT)} with {', '.join(REQUIREMENTS)} …", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", "--clear", PEERS], check=True)
        subprocess.run([python, "-m", "pip", "install", "-q", *REQUIREMENTS], check=True)
        (PEERS / "ready").write_text("")
    return python


def measure(rounds: int) -> dict[str, tuple[float, float]]:
    """Return medians in microseconds: name -> (step, turn)."""
    with Worker(Path(sys.executable), "ours") as mine, Worker(peers_python(), "peers") as others:
        workers = {"ours": mine, "peers": others}
        sizes: dict[tuple[str, int], int] = {}
        found: dict[tuple[str, int], list[float]] = {}
        for case in CASES:
            for figure in (0, 1):
                per_step = workers[case.side].ask(case.name, figure, 400) / 400  # also warms up
                sizes[case.name, figure] = max(200, min(20_000, int(0.05 / max(per_step, 1e-7)))) // 200 * 200
        for _ in range(rounds):
            for case in CASES:
                for figure in (0, 1):
                    n = sizes[case.name, figure]
                    elapsed = workers[case.side].ask(case.name, figure, n)
                    found.setdefault((case.name, figure), []).append(elapsed / n * 1e6)
    return {
        case.name: (statistics.median(found[case.name, 0]), statistics.median(found[case.name, 1])) for case in CASES
    }


def report(medians: dict[str, tuple[float, float]], rounds: int) -> str:
    lines = [
        f"Python {platform.python_version()}, {platform.machine()}, {os.cpu_count()} cores, one thread; "
        f"median of {rounds} interleaved rounds, processor time.",
        "",
        "| | environment | step, µs | × ours | turn including resets, µs | × ours |",
        "|---|---|---:|---:|---:|---:|",
    ]
    verdicts = []
    for group in ("moves", "math"):
        members = [case for case in CASES if case.group == group]
        base = next(medians[case.name] for case in members if case.side == "ours" and case.nearest)
        for case in members:
            step, turn = medians[case.name]
            name = case.name if case.nearest else f"({case.name})"
            name = f"**{name}**" if case.side == "ours" else name
            lines.append(
                f"| {group} | {name} | {step:.2f} | {step / base[0]:.2f} | {turn:.2f} | {turn / base[1]:.2f} |"
            )
        nearest = [medians[case.name] for case in members if case.side == "peers" and case.nearest]
        for figure, what in ((0, "step"), (1, "turn")):
            ratio = min(peer[figure] for peer in nearest) / base[figure]
            counts = " **This is the figure to compare.**" if figure == COUNTS[group] else ""
            verdicts.append(
                f"- {group}, {what}: the fastest comparable peer takes {ratio:.2f} × our time "
                f"({'ours is not slower' if ratio >= 1 else 'ours is slower'}).{counts}"
            )
    return "\n".join([*lines, "", *verdicts])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--write", action="store_true", help="also write benchmarks/results/env_stepping.md")
    parser.add_argument("--worker", choices=["ours", "peers"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work_for(options.worker)
        return
    text = report(measure(options.rounds), options.rounds)
    print(text)
    if options.write:
        title = (
            "# Time per environment step\n\nBy `python benchmarks/env_stepping.py --write`, whose docstring "
            "describes the measurements.\n"
        )
        (ROOT / "benchmarks" / "results" / "env_stepping.md").write_text(f"{title}\n{text}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
