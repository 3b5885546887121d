"""`python -m spodgt` is `spodgt`."""

import sys

try:
    from spodgt.cli import main
except KeyboardInterrupt:  # Ctrl-C while it loads
    sys.exit("spodgt: stopped.")

if __name__ == "__main__":
    main()
