"""Where learning starts and what is learned next: weak recovery, staircase, recovery, first-order transitions, search."""
