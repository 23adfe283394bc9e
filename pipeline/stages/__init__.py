"""The pipeline's stages, one package each. `main` is in `stage.py`. A stage reads its input files and imports
no other stage.
"""
