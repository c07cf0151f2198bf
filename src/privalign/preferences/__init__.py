"""Preference data -> a reward head with a certified sensitivity."""
