"""The issue tracker: projects, filters, labels, milestones, comments and a board."""

from rllm_gym.sites.tracker.errands import TEMPLATES
from rllm_gym.sites.tracker.pages import ORIGIN, TrackerWorld
from rllm_gym.sites.tracker.world import build

__all__ = ["ORIGIN", "TEMPLATES", "TrackerWorld", "build"]
