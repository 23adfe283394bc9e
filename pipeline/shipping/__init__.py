"""What leaves the house: the gate, the bundle with its card, bill of materials and signature, and their verification."""
