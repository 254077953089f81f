"""All SQL: one function, one statement. Callers own the transactions, except where one commits
by itself so that others can see it (`gate.py`)."""
