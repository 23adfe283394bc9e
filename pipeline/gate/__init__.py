"""What may be shipped: the rules, the recommendation, and the records they read."""
