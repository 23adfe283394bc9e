"""The seams that parity measures, by what is compared: text and tokens, or what the models say."""
