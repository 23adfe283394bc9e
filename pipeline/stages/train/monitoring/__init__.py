"""Monitoring: the log of a run in progress, and the rules that find faults in it."""
