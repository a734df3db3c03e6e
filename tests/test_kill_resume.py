"""A small round of tests/kill_resume.py; run the script itself for the whole proof."""

import subprocess
import sys
from pathlib import Path


def test_three_kills_change_nothing():
    script = Path(__file__).with_name('kill_resume.py')
    command = [sys.executable, str(script), '--kills=3', '--steps=60']
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    assert '0 of ' in done.stdout and 'logged example_ids' in done.stdout
