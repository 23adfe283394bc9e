"""The importance matrix of the training rows."""
