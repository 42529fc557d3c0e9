"""The built-in backends of ``rllm/MCP-v0`` (simulated systems behind tool servers) and the table of task templates."""

from rllm_gym.envs.mcp.worlds import calendar, conversion, files, flaky, multi_server, retail, sqlite, staff, tickets
from rllm_gym.envs.mcp.worlds.task import (
    Answer,
    Call,
    Move,
    ReportInfeasible,
    ToolTask,
    ToolTaskTemplate,
    ToolWorld,
    wanted_facts,
)

TEMPLATES: dict[str, ToolTaskTemplate] = {
    template.name: template
    for world in (sqlite, files, retail, calendar, conversion, multi_server, flaky, tickets, staff)
    for template in world.TEMPLATES
}

__all__ = [
    "TEMPLATES",
    "Answer",
    "Call",
    "Move",
    "ReportInfeasible",
    "ToolTask",
    "ToolTaskTemplate",
    "ToolWorld",
    "wanted_facts",
]
