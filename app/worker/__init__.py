"""What a worker does: applies events, drafts under a claim, tells stories, finds what was lost."""
