"""BrowserGym: its tasks as environments of this package (``env``), and built-in web tasks as its own (``tasks``)."""
