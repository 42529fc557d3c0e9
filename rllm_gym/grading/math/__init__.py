"""Mathematical equivalence: an exact reader of our own first, math-verify in killable workers last."""
