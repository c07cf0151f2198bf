"""Prompt -> candidates: the base policies. What they produce must not depend on the protected data."""
