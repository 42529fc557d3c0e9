"""Code that runs in the two sandboxes of a function test: standard library only, sent in as source."""
