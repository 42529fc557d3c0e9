"""Measure rllm/Search-v0: tool calls per second, the cost of a new collection, and what constant answers score.

    python benchmarks/search.py            # prints the tables; --write also writes them to benchmarks/results

Times are processor time of this process, so that a busy machine changes them little; a call is one ``step`` with one
tool call, and its parsing and its result as text are included. The large collections are articles of many built-in
ones, written to a file; their memory is the growth of the resident set while the file is opened and indexed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import resource
import tempfile
import time
from collections import Counter
from pathlib import Path

from rllm_gym.envs.search import SearchEnv
from rllm_gym.envs.search.built_in_corpus import build_corpus
from rllm_gym.envs.search.demonstrations import replies
from rllm_gym.envs.search.questions import HOPS, search_tasks
from rllm_gym.grading.short_text import exact_match, f1_score

RESULT = Path(__file__).parent / "results" / "search.md"
CALLS = 1_000
SIZES = (10_000, 50_000)
QUESTIONS = 100
CONSTANTS = 1_500


def call(name: str, **arguments: object) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def per_second(env: SearchEnv, calls: list[str]) -> float:
    """Return how many of these calls run per second of processor time."""
    env.reset(seed=0)
    env.max_turns = 10**9
    env.step(calls[0])
    start = time.process_time()
    for one in calls:
        env.step(one)
    return len(calls) / (time.process_time() - start)


def rates(env: SearchEnv, names: list[str], ids: list[str]) -> str:
    rng = random.Random(0)
    searches = [call("search", query=" ".join(rng.sample(names, 2))) for _ in range(CALLS)]
    reads = [call("read", id=rng.choice(ids)) for _ in range(CALLS)]
    return f"{per_second(env, searches):,.0f} | {per_second(env, reads):,.0f}"


def built_in() -> list[str]:
    rows = []
    for articles in (12, 160, 1_000):
        env = SearchEnv(corpus_size=articles, difficulty=1)
        start = time.process_time()
        for index in range(10):
            env.reset(options={"task": index})
        first = (time.process_time() - start) / 10
        start = time.process_time()
        for _ in range(100):
            env.reset(options={"task": 0})
        again = (time.process_time() - start) / 100
        corpus = build_corpus(env.task.data["corpus_seed"], articles)
        names, ids = [one.name for one in corpus.entities], [one.id for one in corpus.entities]
        rows.append(f"| {articles} | {rates(env, names, ids)} | {1000 * first:.1f} | {1000 * again:.2f} |")
    return rows


def large(folder: Path) -> list[str]:
    rows = []
    for size in SIZES:
        path, names = folder / f"{size}.jsonl", []
        with path.open("w") as file:
            for seed in range(size // 500):
                for document in build_corpus(seed, 500).articles():
                    names.append(document.title)
                    row = {"id": f"{seed}-{document.id}", "title": document.title, "text": document.text}
                    file.write(json.dumps(row) + "\n")
        ids = [f"{seed}-d{number}" for seed in range(size // 500) for number in range(1, 501)]
        task = [{"question": "Which?", "answer": "none"}]
        before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
        env = SearchEnv(tasks=task, corpus=path)
        seconds = time.process_time() - start
        memory = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
        megabytes = path.stat().st_size / 1e6
        rows.append(f"| {size:,} | {megabytes:.0f} | {seconds:.1f} | {memory:.0f} | {rates(env, names, ids)} |")
    return rows


def solved() -> list[str]:
    rows = []
    for hops in (0, *HOPS):
        env = SearchEnv(difficulty=hops, split="test", max_turns=20)
        right, turns = 0.0, 0
        for index in range(QUESTIONS):
            env.reset(options={"task": index})
            for reply in replies(env.task):
                right += env.step(reply)[1]
                turns += 1
        rows.append(f"| {hops} | {right / QUESTIONS:.2f} | {turns / QUESTIONS:.1f} |")
    return rows


def constants() -> str:
    tasks = search_tasks()
    gold = [tasks[index].data["answers"] for index in range(CONSTANTS)]
    words = Counter(word for answers in gold for word in {*answers, *answers[0].split()})
    candidates = [word for word, _ in words.most_common(100)]
    exact = max(sum(exact_match(one, answers) for answers in gold) for one in candidates) / CONSTANTS
    f1 = max(sum(f1_score(one, answers) for answers in gold) for one in candidates) / CONSTANTS
    return f"exact match {exact:.4f}, F1 {f1:.4f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--write", action="store_true", help=f"also write {RESULT.name}")
    write = parser.parse_args().write
    with tempfile.TemporaryDirectory() as folder:
        lines = [
            "# rllm/Search-v0",
            "",
            f"`python benchmarks/search.py`: processor time on {platform.machine()}, {os.cpu_count()} cores, load "
            f"{os.getloadavg()[0]:.1f}, Python {platform.python_version()}.",
            "",
            "## Built-in collections",
            "",
            "| articles | searches per second | reads per second | reset with a new collection, ms | reset again, ms |",
            "|---|---|---|---|---|",
            *built_in(),
            "",
            "## Collections in files",
            "",
            "| documents | MB | seconds to open and index | MB of memory | searches per second | reads per second |",
            "|---|---|---|---|---|---|",
            *large(Path(folder)),
            "",
            "## The scripted searcher",
            "",
            f"Mean reward of {QUESTIONS} test questions per difficulty.",
            "",
            "| difficulty | reward | replies per question |",
            "|---|---|---|",
            *solved(),
            "",
            "## Constant answers",
            "",
            f"The best of the 100 most frequent answers and words of answers, over {CONSTANTS:,} questions: "
            f"{constants()}.",
        ]
    text = "\n".join(lines) + "\n"
    print(text)
    if write:
        RESULT.write_text(text)


if __name__ == "__main__":
    main()
