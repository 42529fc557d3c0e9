"""A trained agent in service: an endpoint that logs its calls, and the conversations in logs as data to train on."""

from rllm_gym.serving.call_log import CallLog
from rllm_gym.serving.conversations import Conversation, Conversations, ServedCall
from rllm_gym.serving.export import episode_of, preference_rows, replay_rows, sft_rows
from rllm_gym.serving.log_rows import LogRowError, calls_of_row, json_lines
from rllm_gym.serving.replay import LoggedEpisodes, logged_reward
from rllm_gym.serving.served_agent import ServedAgent

__all__ = [
    "CallLog",
    "Conversation",
    "Conversations",
    "LogRowError",
    "LoggedEpisodes",
    "ServedAgent",
    "ServedCall",
    "calls_of_row",
    "episode_of",
    "json_lines",
    "logged_reward",
    "preference_rows",
    "replay_rows",
    "sft_rows",
]
