"""PPO's value head: a linear layer on the backbone's last hidden states."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class ValueHead(nn.Module):
    """Maps hidden states to values. Initialized to 0 and always computed in float32.

    Args:
        hidden_size: Width D of the hidden states.
    """

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.weight_D = nn.Parameter(torch.zeros(hidden_size))
        self.bias = nn.Parameter(torch.zeros(()))

    def forward(self, hidden_ND: Tensor) -> Tensor:
        """Compute values ``(N,)`` from hidden states ``(N, D)``."""
        # A product and a sum instead of a linear layer, which autocast would compute in half precision.
        value_N: Tensor = (hidden_ND.float() * self.weight_D).sum(-1) + self.bias
        return value_N
