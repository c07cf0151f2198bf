"""Selection rules, one file each, of the same anatomy: settings, `event`, `run`."""
