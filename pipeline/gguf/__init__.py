"""GGUF files: headers, tensors, names, dequantizers, provenance."""
