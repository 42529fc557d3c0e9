"""vLLM as a sampler: ``in_process`` runs it in this process, ``server`` in a separate one."""
