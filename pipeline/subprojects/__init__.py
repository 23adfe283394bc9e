"""Sub-projects: folders in which a stage runs other stages, each as a separate process, with settings of
their own.
"""
