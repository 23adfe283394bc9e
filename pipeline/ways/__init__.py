"""The ways to ship, measured side by side: sub-projects that run the real stages, what is measured of each way, and the statistics."""
