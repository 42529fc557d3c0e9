"""A real Chromium: one process, an isolated context an episode, and walls around it. No tasks and no rewards here."""
