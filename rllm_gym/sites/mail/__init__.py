"""The mailbox: folders, labels, search, composing, rules and an address book."""

from rllm_gym.sites.mail.errands import TEMPLATES
from rllm_gym.sites.mail.pages import ORIGIN, MailWorld
from rllm_gym.sites.mail.world import build

__all__ = ["ORIGIN", "TEMPLATES", "MailWorld", "build"]
