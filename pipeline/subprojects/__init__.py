"""Folders in which a stage runs other stages, each as a process of its own, with settings of their own."""
