"""All training options as frozen dataclasses, one file per section.

Each section's check is in its file. The options of a section that can be ``None`` exist only with what they belong to;
those of the algorithm, the sampler and the model depend on the chosen one. :mod:`trainers.config_loading` reads
configurations from YAML and the command line.
"""

from trainers.config.asynchrony import AsynchronyConfig
from trainers.config.checkpoint import CheckpointConfig
from trainers.config.dpo import DpoConfig, PreferenceConfig, validate_dpo
from trainers.config.entropy import EntropyConfig
from trainers.config.env import EnvConfig, SamplingConfig
from trainers.config.model import LoraConfig, LoraModelConfig, ModelConfig, TinyConfig
from trainers.config.offline import FilePaths, HeldOutConfig, HeldOutFilesConfig, LengthConfig
from trainers.config.optimizer import OptimizerConfig
from trainers.config.roles import CopiesConfig, OpponentsConfig, RoleAssignment, RoleConfig
from trainers.config.sft import (
    BestConfig,
    DemonstrationConfig,
    PolicyDemonstrationConfig,
    SftConfig,
    StopConfig,
    validate_sft,
)
from trainers.config.train import CurriculumConfig, TrainConfig, ValidationConfig, validate
from trainers.json_object import JsonObject
from trainers.option_checks import ConfigError

__all__ = [
    "AsynchronyConfig",
    "BestConfig",
    "CheckpointConfig",
    "ConfigError",
    "CopiesConfig",
    "CurriculumConfig",
    "DemonstrationConfig",
    "DpoConfig",
    "EntropyConfig",
    "EnvConfig",
    "FilePaths",
    "HeldOutConfig",
    "HeldOutFilesConfig",
    "JsonObject",
    "LengthConfig",
    "LoraConfig",
    "LoraModelConfig",
    "ModelConfig",
    "OpponentsConfig",
    "OptimizerConfig",
    "PolicyDemonstrationConfig",
    "PreferenceConfig",
    "RoleAssignment",
    "RoleConfig",
    "SamplingConfig",
    "SftConfig",
    "StopConfig",
    "TinyConfig",
    "TrainConfig",
    "ValidationConfig",
    "validate",
    "validate_dpo",
    "validate_sft",
]
