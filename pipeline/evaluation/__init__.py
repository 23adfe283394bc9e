"""What evaluate measures, a module each: likeness to a reference, speed, serving, general ability, lm-evaluation-harness."""
