"""The merge of the adapter into 16-bit weights, in little memory."""
