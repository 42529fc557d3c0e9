"""The calendar: events, series, invitations, and free times of colleagues."""

from rllm_gym.envs.web.sites.calendar.generate import build
from rllm_gym.envs.web.sites.calendar.pages import ORIGIN, CalendarApp
from rllm_gym.envs.web.sites.calendar.tasks import TEMPLATES

__all__ = ["ORIGIN", "TEMPLATES", "CalendarApp", "build"]
