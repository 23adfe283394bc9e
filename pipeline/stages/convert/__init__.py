"""The merged model as a 16-bit GGUF."""
