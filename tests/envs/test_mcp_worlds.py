"""The built-in tool worlds: the way told by an errand solves it, doing nothing or the next best thing does not."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mcp", reason="the worlds are MCP servers: pip install 'rllm-gym[mcp]'")

from mcp.server.mcpserver.exceptions import ToolError, UnexpectedToolError

from rllm_gym.envs.mcp.worlds import (
    TEMPLATES,
    Answer,
    Call,
    Move,
    ReportInfeasible,
    ToolErrand,
    ToolTemplate,
    ToolWorld,
    wanted_facts,
)
from rllm_gym.grading.answers import matches

SEEDS = range(20)


@dataclass
class Played:
    errand: ToolErrand
    facts: Any
    untouched: Any = None
    answer: str = ""
    reported: bool = False
    said: list[str] = field(default_factory=list)

    def rewarded(self, wanted: Any) -> bool:
        right = self.reported == self.errand.infeasible and self.facts == wanted
        return right and (self.errand.answer is None or matches(self.errand.answer, self.answer))


def begun(template: ToolTemplate, seed: int, difficulty: int) -> tuple[ToolWorld, ToolErrand]:
    world = template.build(seed, difficulty)
    return world, template.errand(world, random.Random(seed), difficulty)


async def played(world: ToolWorld, errand: ToolErrand, moves: Sequence[Move], workspace: Path) -> Played:
    """What comes of the moves in an untouched world."""
    world.prepare(workspace)
    servers = {server.name: server.make(workspace, 0) for server in world.servers(workspace)}
    episode = Played(errand, None, untouched=world.facts(workspace))
    for move in moves:
        match move:
            case Answer(text):
                episode.answer = text
            case ReportInfeasible():
                episode.reported = True
            case Call(tool, arguments, name):
                episode.said.append(await called(servers, tool, dict(arguments), name))
    episode.facts = world.facts(workspace)
    return episode


async def called(servers: dict[str, Any], tool: str, arguments: dict[str, Any], name: str) -> str:
    offering = [
        server for title, server in servers.items() if title == name or (not name and await offers(server, tool))
    ]
    assert len(offering) == 1, f"{tool} of {name or 'any'}: offered by {len(offering)} servers"
    try:
        result = await offering[0].call_tool(tool, arguments)
    except UnexpectedToolError:
        raise  # a crash of ours
    except ToolError as error:
        return f"ERROR {error}"
    return "\n".join(block.text for block in result.content)


async def offers(server: Any, tool: str) -> bool:
    return any(offered.name == tool for offered in await server.list_tools())


def level(template: ToolTemplate, seed: int) -> int:
    return template.difficulties[seed % len(template.difficulties)]


@pytest.mark.parametrize("name", TEMPLATES)
def test_the_errands_own_way_is_rewarded_and_neither_nothing_nor_the_near_miss_is(name: str, tmp_path: Path):
    template = TEMPLATES[name]

    async def all_seeds() -> None:
        for seed in SEEDS:
            difficulty = level(template, seed)
            folders = [tmp_path / f"{seed}-{role}" for role in ("twin", "right", "wrong")]
            for folder in folders:
                folder.mkdir()
            world, errand = begun(template, seed, difficulty)
            wanted = wanted_facts(template, errand, seed, difficulty, folders[0])
            assert isinstance(errand.calls[-1], Answer | ReportInfeasible)
            right = await played(world, errand, errand.calls, folders[1])
            assert right.rewarded(wanted), (seed, right, wanted)
            wrong = await played(template.build(seed, difficulty), errand, errand.wrong_calls, folders[2])
            assert not wrong.rewarded(wanted), (seed, wrong)
            idle = Played(errand, wrong.untouched)
            assert not idle.rewarded(wanted), (seed, idle)

    asyncio.run(all_seeds())


def test_the_same_seed_gives_the_same_errand_in_another_process():
    program = (
        "import hashlib, random\n"
        "from rllm_gym.envs.mcp.worlds import TEMPLATES\n"
        "told = hashlib.sha256()\n"
        "for template in TEMPLATES.values():\n"
        "    for difficulty in template.difficulties:\n"
        "        world = template.build(7, difficulty)\n"
        "        errand = template.errand(world, random.Random(7), difficulty)\n"
        "        told.update(repr((errand.goal, errand.calls, errand.wrong_calls, errand.answer)).encode())\n"
        "print(told.hexdigest())\n"
    )
    told = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(told) == 1


@pytest.mark.parametrize("wish", ["return", "exchange"])
def test_no_word_of_a_request_tells_that_it_will_be_refused(wish: str):
    def said_always(name: str) -> set[str]:
        goals = (begun(TEMPLATES[name], seed, 1 + seed % 3)[1].goal for seed in range(60))
        return set.intersection(*(set(goal.replace(",", " ").replace(".", " ").split()) for goal in goals))

    assert said_always(f"retail/{wish}") == said_always(f"retail/{wish}-refused")


@pytest.mark.parametrize("name", TEMPLATES)
def test_difficulty_changes_the_work_and_seeds_change_the_errand(name: str, tmp_path: Path):
    template, goals = TEMPLATES[name], set()

    async def work(difficulty: int) -> int:
        """How much is asked, done and read on the way, and how large the world is."""
        total = 0
        for seed in range(4):
            world, errand = begun(template, seed, difficulty)
            (workspace := tmp_path / f"{difficulty}-{seed}").mkdir()
            episode = await played(world, errand, errand.calls, workspace)
            total += len(errand.goal) + 100 * len(errand.calls) + sum(map(len, episode.said)) + len(repr(episode.facts))
            goals.add(errand.goal)
        return total

    easy, hard = asyncio.run(work(1)), asyncio.run(work(3))
    assert hard > 1.1 * easy
    assert len(goals) > 2


def test_importing_the_worlds_imports_no_server():
    program = "import rllm_gym.envs.mcp.worlds, sys; print('mcp' in sys.modules, 'pydantic' in sys.modules)"
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert said.split() == ["False", "False"]
