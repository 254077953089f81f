"""A Shortcut workspace on this machine, that delivers badly on purpose."""
