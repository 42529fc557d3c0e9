"""The built-in web sites: pages written in Python, state that can be compared, and the tasks on them. No browser here."""
