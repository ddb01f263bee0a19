"""`python -m scannet_prep` is the command `scannet-prep`."""

import sys

from scannet_prep.cli.main import main

sys.exit(main())
