"""What each model that could be shipped scores, and how fast it is."""
