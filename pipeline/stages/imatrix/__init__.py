"""The importance matrix, measured on the training rows."""
