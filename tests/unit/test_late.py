"""What is loaded late is whole for whoever needs it after all."""

from __future__ import annotations

import subprocess
import sys

CODE = """
import sys
import pointsman.bus.nats_client
assert "nats.js.client" not in sys.modules
from nats.js.errors import NotFoundError
import nats
print(nats.js.JetStreamContext.__name__, NotFoundError.__name__)
"""


def test_an_import_of_a_part_of_what_was_left_out_loads_all_of_it() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, timeout=30, check=False)

    assert (done.stdout, done.stderr) == ("JetStreamContext NotFoundError\n", "")
