"""What runs behind the wall during grading: standard library and the runtime's pytest, sent in as source text."""
