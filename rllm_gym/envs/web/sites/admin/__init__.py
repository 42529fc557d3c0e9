"""The back office: tables of customers, staff, products and invoices."""

from rllm_gym.envs.web.sites.admin.generate import build
from rllm_gym.envs.web.sites.admin.pages import ORIGIN, AdminApp
from rllm_gym.envs.web.sites.admin.tasks import TEMPLATES

__all__ = ["ORIGIN", "TEMPLATES", "AdminApp", "build"]
