"""`python -m fuseboard`: the same as the program `fuseboard`."""

import sys

from fuseboard._cli import main

sys.exit(main())
