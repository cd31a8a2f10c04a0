"""`python -m fedrift`."""

from fedrift.cli import main

if __name__ == "__main__":
    main()
