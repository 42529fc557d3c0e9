"""The built-in web sites: pages written in Python, state that can be compared, and tasks on them. No browser here."""
