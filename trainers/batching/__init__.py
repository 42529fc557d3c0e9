"""Conversion of samples to microbatches."""

from trainers.batching.cost_model import CostModel
from trainers.batching.microbatch import MicroBatch, make_micro_batches
from trainers.batching.rows import Row, final_rows, rows_of, split_for_minibatches

__all__ = ["CostModel", "MicroBatch", "Row", "final_rows", "make_micro_batches", "rows_of", "split_for_minibatches"]
