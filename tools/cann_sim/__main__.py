"""The command line: ``python -m tools.cann_sim``."""

import sys

from tools.cann_sim.cli import main

sys.exit(main())
