"""The main job on the embedded model, end to end."""
