"""`python -m testbed` is the command `polyroce`."""

from __future__ import annotations

from testbed.cli import main

if __name__ == "__main__":
    main()
