"""Candidates -> scores in a public range, each with its sensitivity."""
