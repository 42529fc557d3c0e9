"""``python -m tablequery FILE QUERY``"""

import sys

from tablequery.cli import main

sys.exit(main())
