"""Quench: from a folder of chat logs to a local model one can trust."""

__version__ = "0.2.0"
