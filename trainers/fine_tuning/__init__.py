"""Fine-tuning on fixed examples: demonstrations to imitate (SFT), pairs to prefer one of (DPO)."""
