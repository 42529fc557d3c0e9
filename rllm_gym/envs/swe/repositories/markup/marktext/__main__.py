"""``python -m marktext [--toc] [FILE]``"""

import sys

from marktext.cli import main

sys.exit(main(sys.argv[1:]))
