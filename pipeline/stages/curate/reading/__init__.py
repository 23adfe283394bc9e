"""Files of any known format as rows."""
