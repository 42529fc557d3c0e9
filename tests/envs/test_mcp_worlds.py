"""The built-in tool worlds: the way told by an errand solves it, doing nothing or the next best thing does not."""

from __future__ import annotations

import asyncio
import random
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mcp", reason="the worlds are MCP servers: pip install 'rllm-gym[mcp]'")

from mcp.server.mcpserver.exceptions import ToolError, UnexpectedToolError

from rllm_gym.envs.mcp.worlds import (
    TEMPLATES,
    Answer,
    Call,
    ReportInfeasible,
    ToolErrand,
    ToolTemplate,
    wanted_facts,
)
from rllm_gym.grading.answers import matches

SEEDS = range(20)


def errand_of(template: ToolTemplate, seed: int, difficulty: int) -> ToolErrand:
    return template.errand(template.build(seed, difficulty), random.Random(seed), difficulty)


async def played(template: ToolTemplate, seed: int, difficulty: int, moves: Sequence[Any]) -> tuple[bool, list[str]]:
    """Whether the moves bring the reward, and what the tools said."""
    errand = errand_of(template, seed, difficulty)
    said: list[str] = []
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as other:
        workspace = Path(folder)
        world = template.build(seed, difficulty)
        world.prepare(workspace)
        servers = {server.name: server.make(workspace, seed) for server in world.servers(workspace)}
        answer, reported = "", False
        for move in moves:
            match move:
                case Answer(text):
                    answer = text
                case ReportInfeasible():
                    reported = True
                case Call(tool, arguments, name):
                    said.append(await called(servers, tool, dict(arguments), name))
        unharmed = world.facts(workspace) == wanted_facts(template, errand, seed, difficulty, Path(other))
    right = reported if errand.infeasible else not reported
    if errand.answer is not None:
        right = right and matches(errand.answer, answer)
    return right and unharmed, said


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


def levels(template: ToolTemplate, seed: int) -> int:
    return template.difficulties[seed % len(template.difficulties)]


@pytest.mark.parametrize("name", TEMPLATES)
def test_the_errands_own_way_is_rewarded_and_neither_nothing_nor_the_near_miss_is(name: str):
    template = TEMPLATES[name]

    async def all_seeds() -> None:
        for seed in SEEDS:
            difficulty = levels(template, seed)
            errand = errand_of(template, seed, difficulty)
            assert isinstance(errand.calls[-1], Answer | ReportInfeasible)
            right, said = await played(template, seed, difficulty, errand.calls)
            assert right, (seed, errand, said)
            idle, _ = await played(template, seed, difficulty, [Answer("")])
            assert not idle, (seed, errand)
            wrong, said = await played(template, seed, difficulty, errand.wrong_calls)
            assert not wrong, (seed, errand, said)

    asyncio.run(all_seeds())
