"""How a training run is watched: its journal, its health, its samples, its curves, and the record of what ran where."""
