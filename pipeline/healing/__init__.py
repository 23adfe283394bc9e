"""Healing a level: an adapter that brings a quantised file back to how the file it was made from answers."""
