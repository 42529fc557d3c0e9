"""The built-in domains: the solution of a task solves it; doing nothing or a near miss does not."""

from __future__ import annotations

import asyncio
import hashlib
import os
import random
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mcp", reason="the tools are MCP servers: pip install 'rllm-gym[mcp]'")

from mcp.server.mcpserver.exceptions import ToolError, UnexpectedToolError

from rllm_gym.envs.mcp.domains import (
    TEMPLATES,
    Call,
    DomainState,
    FinalAnswer,
    InfeasibleReport,
    SolutionStep,
    ToolTask,
    ToolTaskTemplate,
    wanted_facts,
)
from rllm_gym.grading.answers import matches
from tests.sites.task_checks import unordered


@dataclass
class ToolEpisode:
    task: ToolTask
    facts: Any
    untouched: Any = None
    answer: str = ""
    reported: bool = False
    results: list[str] = field(default_factory=list)

    def rewarded(self, expected: Any) -> bool:
        right = self.reported == self.task.infeasible and self.facts == expected
        return right and (self.task.answer is None or matches(self.task.answer, self.answer))


def start_episode(template: ToolTaskTemplate, seed: int, difficulty: int) -> tuple[DomainState, ToolTask]:
    state = template.build(seed, difficulty)
    return state, template.make_task(state, random.Random(seed), difficulty)


async def play_moves(state: DomainState, task: ToolTask, moves: Sequence[SolutionStep], workspace: Path) -> ToolEpisode:
    """Run the moves in a new copy of the state and return what they did."""
    state.prepare(workspace)
    servers = {server.name: server.make(workspace, 0) for server in state.servers(workspace)}
    episode = ToolEpisode(task, None, untouched=state.facts(workspace))
    for move in moves:
        match move:
            case FinalAnswer(text):
                episode.answer = text
            case InfeasibleReport():
                episode.reported = True
            case Call(tool, arguments, name):
                episode.results.append(await called(servers, tool, dict(arguments), name))
    episode.facts = state.facts(workspace)
    return episode


async def called(servers: dict[str, Any], tool: str, arguments: dict[str, Any], name: str) -> str:
    offering = [
        server for title, server in servers.items() if title == name or (not name and await offers(server, tool))
    ]
    assert len(offering) == 1, f"{tool} of {name or 'any'}: offered by {len(offering)} servers"
    try:
        result = await offering[0].call_tool(tool, arguments)
    except UnexpectedToolError:
        raise  # an error of this library
    except ToolError as error:
        return f"ERROR {error}"
    return "\n".join(block.text for block in result.content)


async def offers(server: Any, tool: str) -> bool:
    return any(offered.name == tool for offered in await server.list_tools())


def level(template: ToolTaskTemplate, seed: int) -> int:
    return template.difficulties[seed % len(template.difficulties)]


def similar_task(
    template: ToolTaskTemplate, task: ToolTask, seed: int, difficulty: int, folder: Path
) -> ToolTask | None:
    """Return a task of the template on the same state that requests another end state or answer, if it has one."""

    def requested(task: ToolTask, name: str) -> tuple[Any, ...]:
        workspace = folder / name
        workspace.mkdir()
        return wanted_facts(template, task, seed, difficulty, workspace), unordered(task.answer), task.infeasible

    wanted = requested(task, "requested")
    for other_seed in range(seed + 1, seed + 6):
        other = template.make_task(template.build(seed, difficulty), random.Random(other_seed), difficulty)
        if requested(other, f"requested{other_seed}") != wanted:
            return other
    return None


@pytest.mark.parametrize("seeds", [range(3), pytest.param(range(3, 20), marks=pytest.mark.long)], ids=["few", "more"])
def test_only_the_solution_is_rewarded_and_not_idling_or_the_near_miss(seeds: range, tmp_path: Path):
    """Every template; the first three seeds have three difficulties."""

    async def find_errors(name: str, seed: int, folder: Path) -> list[Any]:
        template = TEMPLATES[name]
        folders = [folder / role for role in ("untouched", "right", "short", "similar")]
        for item in folders:
            item.mkdir(parents=True)
        difficulty = level(template, seed)
        state, task = start_episode(template, seed, difficulty)
        expected = wanted_facts(template, task, seed, difficulty, folders[0])
        assert isinstance(task.calls[-1], FinalAnswer | InfeasibleReport)
        right = await play_moves(state, task, task.calls, folders[1])
        found = [("calls", right)] if not right.rewarded(expected) else []
        wrong = {"idle": ToolEpisode(task, right.untouched)}
        if task.outcome is not None and not name.startswith("flaky/"):  # there the last call may only repeat another
            wrong["cut short"] = await play_moves(
                template.build(seed, difficulty), task, (*task.calls[:-2], task.calls[-1]), folders[2]
            )
        other = similar_task(template, task, seed, difficulty, folder)
        if other is not None:
            wrong["similar"] = await play_moves(template.build(seed, difficulty), task, other.calls, folders[3])
        return found + [(path, episode) for path, episode in wrong.items() if episode.rewarded(expected)]

    async def everything() -> list[Any]:
        found = []
        for name in TEMPLATES:
            for seed in seeds:
                folder = tmp_path / name.replace("/", "-") / str(seed)
                try:
                    found += [(name, seed, *wrong) for wrong in await find_errors(name, seed, folder)]
                except Exception as error:
                    error.add_note(f"{name}, seed {seed}")
                    raise
        return found

    assert asyncio.run(everything()) == []


def tasks_digest() -> str:
    """Return a digest of the hardest task of each template."""
    reported = hashlib.sha256()
    for template in TEMPLATES.values():
        _, task = start_episode(template, 7, template.difficulties[-1])
        reported.update(repr((task.goal, task.calls, task.answer)).encode())
    return reported.hexdigest()


def test_the_same_seed_gives_the_same_task_in_another_process():
    """The other process hashes strings differently."""
    other = "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"
    done = subprocess.run(
        [sys.executable, "-c", "from test_mcp_domains import tasks_digest; print(tasks_digest())"],
        cwd=Path(__file__).parent,
        env={**os.environ, "PYTHONHASHSEED": other},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == tasks_digest()


def test_no_word_of_a_request_reveals_that_it_will_be_refused():
    def common_words(name: str) -> set[str]:
        goals = (start_episode(TEMPLATES[name], seed, 1 + seed % 3)[1].goal for seed in range(60))
        return set.intersection(*(set(goal.replace(",", " ").replace(".", " ").split()) for goal in goals))

    for request in ("return", "exchange"):
        assert common_words(f"retail/{request}") == common_words(f"retail/{request}-refused"), request


def test_difficulty_changes_the_size_and_seeds_change_the_task(tmp_path: Path):
    async def work(name: str, difficulty: int) -> tuple[int, set[str]]:
        """Return the amount of work (length of goal, calls, results and state) and the goals."""
        total, goals = 0, set()
        for seed in range(3):
            state, task = start_episode(TEMPLATES[name], seed, difficulty)
            workspace = tmp_path / name.replace("/", "-") / f"{difficulty}-{seed}"
            workspace.mkdir(parents=True)
            episode = await play_moves(state, task, task.calls, workspace)
            total += len(task.goal) + 100 * len(task.calls) + sum(map(len, episode.results)) + len(repr(episode.facts))
            goals.add(task.goal)
        return total, goals

    wrong = []
    for name in TEMPLATES:
        (easy, some), (hard, others) = asyncio.run(work(name, 1)), asyncio.run(work(name, 3))
        if hard <= 1.1 * easy or len(some | others) < 3:
            wrong.append((name, easy, hard, some | others))
    assert wrong == []
