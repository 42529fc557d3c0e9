"""The back office: tables of customers, staff, products and invoices."""

from rllm_gym.sites.admin.errands import TEMPLATES
from rllm_gym.sites.admin.pages import ORIGIN, AdminWorld
from rllm_gym.sites.admin.world import build

__all__ = ["ORIGIN", "TEMPLATES", "AdminWorld", "build"]
