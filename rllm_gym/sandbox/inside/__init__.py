"""What runs behind the wall: standard library only, never imported by the trainer, sent in as source."""
