"""Conversion of samples to microbatches."""

from trainers.batching.costs import Costs
from trainers.batching.microbatch import MicroBatch, make_micro_batches
from trainers.batching.rows import Row, rows_of, split_for_minibatches

__all__ = ["Costs", "MicroBatch", "Row", "make_micro_batches", "rows_of", "split_for_minibatches"]
