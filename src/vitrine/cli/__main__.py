"""`python -m vitrine.cli` is the same as `vitrine`."""

from vitrine.cli.app import main

main()
