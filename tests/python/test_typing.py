"""What a type checker knows of ops and recorded functions; and the package itself has no error in it."""

import importlib.util
import pathlib
import re
import subprocess
import sys

import pytest

import engine

pytestmark = pytest.mark.skipif(not importlib.util.find_spec("mypy"), reason="mypy is not installed")

CALLS = pathlib.Path(__file__).parent / "typed" / "calls.py"


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mypy")
    (folder / "mypy.ini").write_text("[mypy]\n[mypy-torch.*]\nfollow_imports = skip\n")  # torch's own types take a minute to read
    return folder


def mypy(cache, *args):
    """What mypy says, line by line. It finds the package where this process has found it."""
    folder = pathlib.Path(engine.__file__).parent.parent
    ended = subprocess.run([sys.executable, "-m", "mypy", "--cache-dir", cache, "--config-file", cache / "mypy.ini",
                            "--ignore-missing-imports", "--no-error-summary",
                            "--hide-error-context", *args], cwd=folder, capture_output=True, text=True, timeout=300)  # fmt: skip
    assert not ended.stderr, ended.stderr
    return ended.stdout.splitlines()


def test_a_type_checker_knows_what_calls_return(tmp_path, cache):
    lines, wanted, refused = [], {}, set()
    for number, line in enumerate(CALLS.read_text().splitlines(), 1):
        code, _, comment = line.partition("  # ")
        if comment.startswith("says "):
            wanted[number] = comment.removeprefix("says ")
            code = f"{code[:len(code) - len(code.lstrip())]}reveal_type({code.strip()})"
        if comment == "mypy refuses this line":
            refused.add(number)
        lines.append(code)
    (tmp_path / "calls.py").write_text("\n".join(lines) + "\n")
    revealed, errors = {}, {}
    for said in mypy(cache, str(tmp_path / "calls.py")):
        place, number, what = re.match(r"(.*?):(\d+): (.*)", said).groups()
        if not place.endswith("calls.py"):
            continue
        kind = re.match(r'note: Revealed type is "(.*)"', what)
        if kind:
            revealed[int(number)] = re.sub(r"(engine\.values|builtins)\.", "", kind[1])
        elif what.startswith("error"):
            errors[int(number)] = what
    assert {n: said for n, said in revealed.items()} == wanted
    assert set(errors) == refused, errors


def test_the_package_has_no_error_that_mypy_finds(cache):
    assert [said for said in mypy(cache, "-p", "engine") if "error:" in said and "engine/torch/" not in said] == []
