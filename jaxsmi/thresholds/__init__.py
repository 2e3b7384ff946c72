"""Where learning starts, what is learned next, and where perfect recovery begins."""
