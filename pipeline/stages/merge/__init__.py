"""The adapter added to 16-bit weights, in little memory."""
