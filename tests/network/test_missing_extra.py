"""Without msgspec, the error of a network says how to install it."""

import subprocess
import sys


def test_the_error_of_a_missing_extra_says_how_to_install_it() -> None:
    program = "import sys; sys.modules['msgspec'] = None\nfrom ergo_py.network import Local"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )

    assert "install it with: pip install 'ergo_py[network]'" in done.stderr
