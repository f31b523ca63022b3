"""Pages: what they hold, who has them, and that none is ever lost."""
