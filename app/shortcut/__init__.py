"""What Shortcut sends and what it is asked: signatures, envelopes, and the client of its API."""
