"""Everything that knows llama.cpp: its build, its tools, its server, its files and its logits."""
