"""Fine-tuning on fixed examples: supervised on demonstrations (SFT), or on preference pairs (DPO)."""
