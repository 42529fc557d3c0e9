"""Data parallelism on one machine: ``torchrun --nproc-per-node N`` starts N processes that form one run.

Each rank collects its share of a step's groups. All ranks get all episodes and compute the same targets; each
computes the gradient of its share of the microbatches, and the sum equals the gradient of a single process. Files
and display are left to rank 0.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from typing import Any, TypeVar

import torch
from torch import Tensor, distributed
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from trainers.array_types import FloatArray

_log = logging.getLogger(__name__)
_MESSAGE_BYTES = 1 << 28

T = TypeVar("T")


class ProcessLost(RuntimeError):
    """Another process of the run died, or did not reach a collective operation within the timeout."""


class ProcessGroup:
    """The processes of a run. With a single process, all methods return immediately.

    Attributes:
        rank: Rank of this process.
        size: Number of processes.
    """

    def __init__(self, rank: int = 0, size: int = 1, timeout: float = 0.0) -> None:
        self.rank = rank
        self.size = size
        self._timeout = timeout

    @property
    def is_main_process(self) -> bool:
        """Whether this process writes files and shows progress."""
        return self.rank == 0

    def local_range(self, number: int) -> range:
        """Return this rank's part of ``number`` consecutive items, as even as possible."""
        return range(number * self.rank // self.size, number * (self.rank + 1) // self.size)

    def partition(self, items: Sequence[T], costs: Sequence[int]) -> list[T]:
        """Return this rank's part of items with different costs: each item, most expensive first, goes to the least
        loaded rank.
        """
        if self.size == 1:
            return list(items)
        load = [0] * self.size
        mine = []
        for index in sorted(range(len(items)), key=lambda index: -costs[index]):
            rank = load.index(min(load))
            load[rank] += costs[index]
            if rank == self.rank:
                mine.append(index)
        return [items[index] for index in sorted(mine)]

    def all_gather(self, mine: T) -> list[T]:
        """Return the values of all ranks, in the order of the ranks.

        Raises:
            ProcessLost: A rank is gone.
        """
        if self.size == 1:
            return [mine]
        gathered: list[Any] = [None] * self.size
        with self._collective():
            distributed.all_gather_object(gathered, mine)
        return gathered

    def all_reduce(self, mine: list[FloatArray]) -> list[FloatArray]:
        """Sum each array over the ranks, in their order, so that all ranks get bitwise identical results."""
        return [sum(parts[1:], parts[0]) for parts in zip(*self.all_gather(mine), strict=True)]

    def all_reduce_gradients(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        """Replace the gradients by their sum over all ranks, in messages of at most 256 MiB, or of one tensor.

        Raises:
            ProcessLost: A rank is gone.
        """
        if self.size == 1:
            return
        by_type: dict[tuple[torch.dtype, torch.device], list[torch.nn.Parameter]] = {}
        for parameter in parameters:
            by_type.setdefault((parameter.dtype, parameter.device), []).append(parameter)
        for group in itertools.chain.from_iterable(map(_messages, by_type.values())):
            # A rank without microbatches has no gradients.
            for parameter in group:
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
            flat = torch.cat([parameter.grad.flatten() for parameter in group])  # type: ignore[union-attr]
            with self._collective():
                distributed.all_reduce(flat)
            parts = torch.split(flat, [parameter.numel() for parameter in group])
            for parameter, summed in zip(group, parts, strict=True):
                parameter.grad.copy_(summed.view_as(parameter))  # type: ignore[union-attr]

    def broadcast(self, tensors: Iterable[Tensor]) -> None:
        """Copy the tensors of rank 0 to all ranks."""
        if self.size == 1:
            return
        for tensor in tensors:
            with self._collective():
                distributed.broadcast(tensor.detach(), src=0)

    @contextlib.contextmanager
    def _collective(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            message = (
                f"rank {self.rank} of {self.size} lost another rank, which died or did not respond within "
                f"{self._timeout:g} s (this timeout depends on env.episode_timeout): {error}"
            )
            _log.error(message)  # now: torchrun soon ends this process, perhaps before the exception is reported
            raise ProcessLost(message) from error


def _messages(parameters: Sequence[torch.nn.Parameter]) -> Iterator[list[torch.nn.Parameter]]:
    """Divide parameters into messages. A copy of all gradients of a large model would not fit beside them."""
    message: list[torch.nn.Parameter] = []
    size = 0
    for parameter in parameters:
        if message and size + parameter.nbytes > _MESSAGE_BYTES:
            yield message
            message, size = [], 0
        message.append(parameter)
        size += parameter.nbytes
    if message:
        yield message


@contextlib.contextmanager
def limit_threads(number: int | None = None) -> Iterator[None]:
    """Set the number of torch threads of this process, and restore it afterwards. The default is the variable
    ``OMP_NUM_THREADS``, or 1 without it: on a busy machine torch's own default is many times slower.
    """
    before = torch.get_num_threads()
    given = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    # OpenMP itself has written a message about an invalid value.
    torch.set_num_threads(number or (int(given) if given.isdecimal() else 0) or 1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


SINGLE_PROCESS = ProcessGroup()
_opened = itertools.count()
# Reentrant: a callback of a run may start another one, which ends before the first one goes on.
_in_run = threading.RLock()


@contextlib.contextmanager
def open_process_group(timeout: float) -> Iterator[ProcessGroup]:
    """Open the ranks started by torchrun, or only this process, for one run.

    Args:
        timeout: Seconds that a rank waits for the others.

    Raises:
        RuntimeError: Another thread of this process has a run.
    """
    if not _in_run.acquire(blocking=False):
        raise RuntimeError(
            "another thread of this process is in a run (train, sft or dpo). Runs of one process would share the "
            "random generators, the number of torch threads and the loading of models, which transformers does not do "
            "in two threads at once: start this run after that one, or in its own process"
        )
    try:
        with _open_ranks(timeout) as ranks:
            yield ranks
    finally:
        _in_run.release()


@contextlib.contextmanager
def _open_ranks(timeout: float) -> Iterator[ProcessGroup]:
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1 or distributed.is_initialized():
        yield (
            SINGLE_PROCESS if size == 1 else ProcessGroup(distributed.get_rank(), distributed.get_world_size(), timeout)
        )
        return
    backend = "gloo"
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        backend = "cpu:gloo,cuda:nccl"
    limit = timedelta(seconds=timeout)
    store, rank, _ = next(rendezvous("env://", timeout=limit))
    # If a script has several runs, each needs its own prefix, so that it does not read the addresses of the previous
    # one.
    store = PrefixStore(f"run {next(_opened)}", store)
    distributed.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=limit)
    try:
        yield ProcessGroup(rank, size, timeout)
    finally:
        distributed.destroy_process_group()
