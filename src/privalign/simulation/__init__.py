"""Candidates whose true reward is known, and the theorems tried on them."""
