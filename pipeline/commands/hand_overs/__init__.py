"""Base, adapter, merged folder and GGUFs that any tool made, each hand-over against the one before it."""
