"""Code that runs inside the sandbox during grading; uses the standard library and the runtime's pytest."""
