"""The built-in backends of ``rllm/MCP-v0``: simulated systems behind tool servers, and the table of task templates.

Each module or package here is one backend and exports its ``TEMPLATES``. What they share is in the package above:
:mod:`~rllm_gym.envs.mcp.task` (types), :mod:`~rllm_gym.envs.mcp.serving` (servers from methods) and
:mod:`~rllm_gym.envs.mcp.wording` (names, dates, formats).
"""

from rllm_gym.envs.mcp.task import (
    Answer,
    Call,
    Move,
    ReportInfeasible,
    ToolTask,
    ToolTaskTemplate,
    ToolWorld,
    wanted_facts,
)
from rllm_gym.envs.mcp.worlds import calendar, conversion, files, flaky, multi_server, retail, sqlite, staff, tickets

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
