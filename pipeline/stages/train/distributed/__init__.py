"""Distributed training: the processes' rendezvous, their micro-batches, and checks that they stay equal."""
