"""`python -m jaxsmi.cli`: the command line. No equation lives here."""

if __name__ == "__main__":
    from jaxsmi.cli.main import main

    raise SystemExit(main())
