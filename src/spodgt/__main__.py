"""`python -m spodgt` is `spodgt`."""

import sys

try:
    from spodgt.cli import main
except KeyboardInterrupt:  # Ctrl-C while libraries load
    print("spodgt: stopped.", file=sys.stderr)
    sys.exit(130)

if __name__ == "__main__":
    main()
