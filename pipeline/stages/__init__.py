"""The stages, a package each: `stage.py` is the door (`main`). A stage reads its inputs and its section, and
imports no other stage.
"""
