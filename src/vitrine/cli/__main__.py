"""`python -m vitrine.cli`, an older way to write `python -m vitrine`."""

from vitrine.cli.app import main

main()
