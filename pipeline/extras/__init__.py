"""Parts that the core does not need. None imports another one, and the core imports none.

`ssh` is no extra: it is what remote and watch share.
"""
