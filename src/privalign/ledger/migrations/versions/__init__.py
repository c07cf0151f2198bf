"""One file per schema version, oldest first; a version never changes once it has been released."""
