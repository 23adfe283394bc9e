"""Distributed training: the processes' rendezvous, their micro-batches, and the checks that they stay
equal.
"""
