"""From samples to what goes through the model at once."""

from trainers.batching.microbatch import MicroBatch, make_micro_batches
from trainers.batching.rows import Row, rows_of, split_for_minibatches

__all__ = ["MicroBatch", "Row", "make_micro_batches", "rows_of", "split_for_minibatches"]
