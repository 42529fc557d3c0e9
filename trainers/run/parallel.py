"""Data parallel on one machine: `torchrun --nproc-per-node N` starts N processes that are one run.

Each plays its share of a step's groups, all of them get all episodes and compute the same targets, each computes the
gradient of its share of the micro-batches, and the sum is what one process would have computed. What only one may do
(files, the display) is done by rank 0.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, distributed
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

T = TypeVar("T")
FloatArray = NDArray[np.float64]


class RankLost(RuntimeError):
    """Another process of the run died, or did not come to where all meet in time."""


class Ranks:
    """The processes of a run, as one of them sees them. Alone, everything here does nothing, at no cost.

    Attributes:
        rank: Which one this is.
        size: How many there are.
    """

    def __init__(self, rank: int = 0, size: int = 1, timeout: float = 0.0) -> None:
        self.rank = rank
        self.size = size
        self._timeout = timeout

    @property
    def leads(self) -> bool:
        """Whether this is the one that writes files and shows progress."""
        return self.rank == 0

    def span(self, number: int) -> range:
        """This rank's part of ``number`` things in a row, as even as they divide."""
        return range(number * self.rank // self.size, number * (self.rank + 1) // self.size)

    def share(self, things: Sequence[T], costs: Sequence[int]) -> list[T]:
        """This rank's part of things that cost differently: each, dearest first, goes to whoever has least so far."""
        if self.size == 1:
            return list(things)
        load = [0] * self.size
        mine = []
        for index in sorted(range(len(things)), key=lambda index: -costs[index]):
            rank = load.index(min(load))
            load[rank] += costs[index]
            if rank == self.rank:
                mine.append(index)
        return [things[index] for index in sorted(mine)]

    def gather(self, mine: T) -> list[T]:
        """What each rank has, by rank; everyone gets it.

        Raises:
            RankLost: One of them is gone.
        """
        if self.size == 1:
            return [mine]
        everyone: list[Any] = [None] * self.size
        with self._meeting():
            distributed.all_gather_object(everyone, mine)
        return everyone

    def sum_each(self, mine: list[FloatArray]) -> list[FloatArray]:
        """The sum of each array over the ranks; in their order, so that all of them get the same bits."""
        return [sum(parts[1:], parts[0]) for parts in zip(*self.gather(mine), strict=True)]

    def sum_gradients(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        """Give every rank the sum of all ranks' gradients, in one message per type.

        Raises:
            RankLost: One of them is gone.
        """
        if self.size == 1:
            return
        by_type: dict[tuple[torch.dtype, torch.device], list[torch.nn.Parameter]] = {}
        for parameter in parameters:
            by_type.setdefault((parameter.dtype, parameter.device), []).append(parameter)
        for group in by_type.values():
            # A rank without a micro-batch of its own has no gradients yet.
            flat = torch.cat(
                [torch.zeros_like(p).flatten() if p.grad is None else p.grad.detach().flatten() for p in group]
            )
            with self._meeting():
                distributed.all_reduce(flat)
            parts = torch.split(flat, [parameter.numel() for parameter in group])
            for parameter, summed in zip(group, parts, strict=True):
                parameter.grad = summed.view_as(parameter)

    def copy_from_first(self, tensors: Iterable[Tensor]) -> None:
        """Give every rank the tensors of rank 0."""
        if self.size == 1:
            return
        for tensor in tensors:
            with self._meeting():
                distributed.broadcast(tensor.detach(), src=0)

    @contextlib.contextmanager
    def _meeting(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            raise RankLost(
                f"rank {self.rank} of {self.size} lost another one, which died or was not ready within "
                f"{self._timeout:g} s (env.episode_timeout bounds how far apart they may be): {error}"
            ) from error


ALONE = Ranks()
_opened = itertools.count()


@contextlib.contextmanager
def open_ranks(timeout: float) -> Iterator[Ranks]:
    """The ranks that torchrun started, or this process alone.

    Args:
        timeout: Seconds one may wait for the others.
    """
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1 or distributed.is_initialized():
        yield ALONE if size == 1 else Ranks(distributed.get_rank(), distributed.get_world_size(), timeout)
        return
    backend = "gloo"
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        backend = "cpu:gloo,cuda:nccl"
    limit = timedelta(seconds=timeout)
    store, rank, _ = next(rendezvous("env://", timeout=limit))
    # Where a script has one run after the other, the second must not find the addresses that the first one left.
    store = PrefixStore(f"run {next(_opened)}", store)
    distributed.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=limit)
    try:
        yield Ranks(rank, size, timeout)
    finally:
        distributed.destroy_process_group()
