"""The ``rllm-gym`` command line. Each command parses arguments, calls other packages and prints the result."""
