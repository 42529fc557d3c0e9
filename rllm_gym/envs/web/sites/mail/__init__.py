"""The mailbox: folders, labels, search, composing, rules and an address book."""

from rllm_gym.envs.web.sites.mail.generate import build
from rllm_gym.envs.web.sites.mail.pages import ORIGIN, MailApp
from rllm_gym.envs.web.sites.mail.tasks import TEMPLATES

__all__ = ["ORIGIN", "TEMPLATES", "MailApp", "build"]
