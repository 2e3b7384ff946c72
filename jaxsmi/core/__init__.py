"""Arrays and their letters, checks of arguments, results, data: what every other room passes
around."""
