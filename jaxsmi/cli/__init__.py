"""The command line: `jaxsmi COMMAND MODEL [flags]`."""
