"""What `preprocess` is made of: rendering, packing, the check that attention keeps packed rows apart, the proof of what was written, its manifest."""
