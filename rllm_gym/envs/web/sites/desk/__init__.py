"""Tasks on two sites of one person: a message in the mailbox asks for an action on another site."""

from rllm_gym.envs.web.sites.desk.tasks import TEMPLATES

__all__ = ["TEMPLATES"]
