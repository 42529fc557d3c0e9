"""The built-in backends of ``rllm/MCP-v0`` (simulated systems behind tool servers) and the table of task templates."""

from rllm_gym.envs.mcp.worlds import calendar, conversion, files, flaky, retail, several, sqlite, staff, tickets
from rllm_gym.envs.mcp.worlds.errand import (
    Answer,
    Call,
    Move,
    ReportInfeasible,
    ToolErrand,
    ToolTemplate,
    ToolWorld,
    wanted_facts,
)

TEMPLATES: dict[str, ToolTemplate] = {
    template.name: template
    for world in (sqlite, files, retail, calendar, conversion, several, flaky, tickets, staff)
    for template in world.TEMPLATES
}

__all__ = [
    "TEMPLATES",
    "Answer",
    "Call",
    "Move",
    "ReportInfeasible",
    "ToolErrand",
    "ToolTemplate",
    "ToolWorld",
    "wanted_facts",
]
