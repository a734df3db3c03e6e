"""The script tests/ablate/kill_grid.py, as it stands."""

import subprocess
import sys
from pathlib import Path


def test_twenty_kills_change_nothing():
    script = Path(__file__).with_name('kill_grid.py')
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stdout + done.stderr
    assert '20 kills; 24 runs done, 0 complaints' in done.stdout
