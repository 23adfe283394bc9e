"""Mixtures of experts: the kinds that can be trained, their experts as separate linears, and the linears that
get an adapter.
"""
