"""Scored candidates: one ragged type, every reader and writer."""
