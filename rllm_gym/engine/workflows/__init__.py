"""Ready-made workflows, which can also be used as templates. Each works with any environment."""

from rllm_gym.engine.workflows.agent_program import AgentProgram
from rllm_gym.engine.workflows.base import EnvAttempt, RoleWorkflow, act_until_done
from rllm_gym.engine.workflows.candidates import BestOfN, SolverJudge
from rllm_gym.engine.workflows.debate import Debate
from rllm_gym.engine.workflows.plan_execute import PlanExecute
from rllm_gym.engine.workflows.self_play import SelfPlay
from rllm_gym.engine.workflows.single_agent import MultiTurn, SingleTurn

__all__ = [
    "AgentProgram",
    "BestOfN",
    "Debate",
    "EnvAttempt",
    "MultiTurn",
    "PlanExecute",
    "RoleWorkflow",
    "SelfPlay",
    "SingleTurn",
    "SolverJudge",
    "act_until_done",
]
