"""Code that runs inside the sandbox: standard library only, sent in as source, not run by the trainer."""
