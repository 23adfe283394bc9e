"""Sub-projects: folders in which a stage runs others, as separate processes, with their own settings."""
