"""What `train` is made of: the QLoRA model with its loss, the trainer, checkpoints that can be trusted, proofs of a run."""
