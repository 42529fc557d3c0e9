"""Other people's libraries on our environments, and theirs as ours: one file a library, imported only when used."""
