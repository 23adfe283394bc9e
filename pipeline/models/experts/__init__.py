"""Mixtures of experts: which can be trained, their experts as linears of their own, what gets an adapter."""
