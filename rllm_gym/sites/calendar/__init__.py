"""The calendar: events, series, invitations, and free times of colleagues."""

from rllm_gym.sites.calendar.errands import TEMPLATES
from rllm_gym.sites.calendar.pages import ORIGIN, CalendarWorld
from rllm_gym.sites.calendar.world import build

__all__ = ["ORIGIN", "TEMPLATES", "CalendarWorld", "build"]
