"""Draftgate: takes Shortcut's webhook deliveries and drafts one patch per story, exactly once."""
