"""The arithmetic of a merge, tensor by tensor."""
