"""Simulations on seeded randomness or in closed form. Nothing here is a private release."""
