"""The stages, a package each: `main` is in `stage.py`. A stage reads its inputs and imports no other."""
