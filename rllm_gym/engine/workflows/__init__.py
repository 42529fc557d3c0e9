"""Ready-made workflows, which can also be used as templates. Each works with any environment."""

from rllm_gym.engine.workflows.acting import Attempted, CastWorkflow, act
from rllm_gym.engine.workflows.candidates import BestOfN, SolverJudge
from rllm_gym.engine.workflows.debate import Debate
from rllm_gym.engine.workflows.plan_execute import PlanExecute
from rllm_gym.engine.workflows.self_play import SelfPlay
from rllm_gym.engine.workflows.single_agent import MultiTurn, SingleTurn

__all__ = [
    "Attempted",
    "BestOfN",
    "CastWorkflow",
    "Debate",
    "MultiTurn",
    "PlanExecute",
    "SelfPlay",
    "SingleTurn",
    "SolverJudge",
    "act",
]
