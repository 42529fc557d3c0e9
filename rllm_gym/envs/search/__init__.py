"""``rllm/Search-v0``: multi-hop questions over a collection of documents, with a search tool."""

from rllm_gym.envs.search.env import SearchEnv

__all__ = ["SearchEnv"]
