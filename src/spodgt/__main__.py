"""`python -m spodgt` is `spodgt`."""

from spodgt.cli import main

main()
