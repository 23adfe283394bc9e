"""Files that other programs export their conversations to: a module per program; `registry` lists them."""
