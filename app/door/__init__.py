"""The receive path, from the bytes of a request to the commit and the answer."""
