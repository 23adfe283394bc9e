"""Preferences (`train.method` dpo, ipo, orpo, simpo, kto): batches of judged answers, reference, trainer."""
