"""The ``rllm-gym`` command line. Each command reads arguments, calls the rooms and prints; no logic lives here."""
