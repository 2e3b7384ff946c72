"""`jaxsmi` and `python -m jaxsmi`: the command line."""

from jaxsmi.cli.process import start

if __name__ == "__main__":
    start()
