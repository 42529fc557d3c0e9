"""Defaults of the Hydra configurations ``agent_ppo_trainer``, ``ppo_trainer`` and ``sft_trainer``.

They contain the options that :mod:`rllm_gym.compat.hydra_config` translates or knows to have no effect.

A program finds them with ``@hydra.main(config_path="pkg://rllm_gym.compat.config", config_name="agent_ppo_trainer")``.
"""
