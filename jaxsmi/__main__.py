"""`python -m jaxsmi`, the door to the command line. No equation lives here."""

from jaxsmi.cli.__main__ import start

if __name__ == "__main__":
    start()
