"""What conversion to GGUF has to know: is the model's folder consistent, which pre-tokenizer is its own, what the GGUF says about itself."""
