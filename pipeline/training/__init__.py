"""What `train` is made of: the QLoRA model with its loss, and checkpoints that can be trusted."""
