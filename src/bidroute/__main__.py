"""`python -m bidroute` is the command `bidroute`."""

from bidroute.cli import main

raise SystemExit(main())
