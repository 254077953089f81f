"""The programs that make drafts: the contract with them, and how a command is run."""
