"""The issue tracker: projects, filters, labels, milestones, comments and a board."""

from rllm_gym.sites.tracker.generate import build
from rllm_gym.sites.tracker.pages import ORIGIN, TrackerApp
from rllm_gym.sites.tracker.tasks import TEMPLATES

__all__ = ["ORIGIN", "TEMPLATES", "TrackerApp", "build"]
