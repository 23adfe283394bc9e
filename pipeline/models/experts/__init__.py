"""Mixtures of experts: which can be trained, their experts as linears of their own, and what gets an
adapter.
"""
