"""The built-in domains of ``rllm/MCP-v0``: simulated systems behind tool servers, and the table of task templates.

Each module or package here is one domain and exports its ``TEMPLATES``. What they share is in the package above:
:mod:`~rllm_gym.envs.mcp.task` (types), :mod:`~rllm_gym.envs.mcp.serving` (servers from methods) and
:mod:`~rllm_gym.envs.mcp.wording` (names, dates, formats).
"""

from rllm_gym.envs.mcp.domains import calendar, conversion, files, flaky, multi_server, retail, sqlite, staff, tickets
from rllm_gym.envs.mcp.task import (
    Call,
    DomainState,
    FinalAnswer,
    InfeasibleReport,
    SolutionStep,
    ToolTask,
    ToolTaskTemplate,
    wanted_facts,
)

TEMPLATES: dict[str, ToolTaskTemplate] = {
    template.name: template
    for domain in (sqlite, files, retail, calendar, conversion, multi_server, flaky, tickets, staff)
    for template in domain.TEMPLATES
}

__all__ = [
    "TEMPLATES",
    "Call",
    "DomainState",
    "FinalAnswer",
    "InfeasibleReport",
    "SolutionStep",
    "ToolTask",
    "ToolTaskTemplate",
    "wanted_facts",
]
