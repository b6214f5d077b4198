"""Whether this run is one without torch: said by whoever starts it, never guessed from what happens to be missing."""

import os

WITHOUT_TORCH = bool(os.environ.get("BATCHLIB_WITHOUT_TORCH"))
