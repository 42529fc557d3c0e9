"""Learning from episodes on one machine; knows no environment by name and no prompt text."""
