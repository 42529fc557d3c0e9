"""Mathematical equivalence: decided by an exact parser first, and by math-verify in killable workers last."""
