"""`python -m vitrine` is the same as `vitrine`."""

from vitrine.cli.app import main

if __name__ == "__main__":
    main()
