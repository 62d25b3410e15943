"""The page of engine.explain in a browser: it draws, its keys work, it prints, it takes 10^5 ops, and it asks for nothing."""

import json
import re
import shutil
import subprocess

import pytest

import engine
from engine.explanation.model import TraceData, TraceEvent, TraceWait

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium: apt-get install chromium")


def made(ops):
    """A trace on four workers: a chain on the first, with three ops beside each link."""
    events, waits = [], []
    for i in range(ops):
        step, worker = divmod(i, 4)
        begin, chain = step * 1e-3 + worker * 1e-6, [4 * (step - 1)] if step else []
        name = "chain" if worker == 0 else f"side {worker}"
        events.append(TraceEvent(name, f"cpu/{worker}", begin, begin + (9e-4 if worker == 0 else 4e-4), i, False, 0.0, begin,
                                 site="model.py:7", after=tuple(chain), uses=(("updates", worker, f"var{worker}"),)))  # fmt: skip
        if worker == 0 and step % 10 == 0:
            waits.append(TraceWait("stage empty", "batches", "caller", begin, begin + 5e-4))
    return TraceData("made.json", events, waits, [f"cpu/{i}" for i in range(4)], events[-1].end)


def browse(tmp_path, page, *options, script=""):
    """What the page looks like to a script that runs in it after it is ready: the DOM, as text."""
    answer = answered(tmp_path, page, *options, script=script)
    if answer is None:
        assert answered(tmp_path, "<html><body></body></html>", *options) is None, "Chromium hangs on this page, and not on an empty one"
        pytest.skip("Chromium has not answered within 50 s, nor to an empty page")
    return answer


def answered(tmp_path, page, *options, script=""):
    asked = f"<script>addEventListener('load', () => {{ {script} }});</script></body>"
    path = tmp_path / "page.html"
    path.write_text(page.replace("</body>", asked), encoding="utf-8")
    command = [CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--disable-dev-shm-usage",
               "--no-first-run", "--window-size=1400,900", f"--user-data-dir={tmp_path / 'profile'}",
               "--virtual-time-budget=4000", *options, path.as_uri()]  # fmt: skip
    for _ in range(2):  # now and then a browser hangs while other programs have the processors
        try:
            done = subprocess.run(command, capture_output=True, timeout=50)
            break
        except subprocess.TimeoutExpired:
            shutil.rmtree(tmp_path / "profile", ignore_errors=True)
    else:
        return None
    assert done.returncode == 0, done.stderr.decode(errors="replace")[-2000:]
    return done.stdout.decode(errors="replace")


PRESS = (
    "const press = (key) => document.dispatchEvent(new KeyboardEvent('keydown', {key, bubbles: true}));"
    "const said = []; "
)
TELL = "document.body.dataset.said = JSON.stringify(said);"
SAID = "said.push(document.getElementById('said').textContent);"


def told(tmp_path, page, script):
    dom = browse(tmp_path, page, "--dump-dom", script=PRESS + script + TELL)
    found = re.search(r'data-said="([^"]*)"', dom)
    assert found, dom[-500:]
    return json.loads(found[1].replace("&quot;", '"').replace("&amp;", "&").replace("&lt;", "<").replace("&gt;", ">"))


@pytest.fixture(scope="module")
def small():
    return engine.explain(made(80)).html()


def test_the_page_draws_every_row_without_an_error(tmp_path, small):
    said = told(tmp_path, "<script>window.wrong = []; addEventListener('error', e => window.wrong.push(e.message));</script>" + small, """
      const pixels = (id) => { const c = document.getElementById(id);
        const data = c.getContext('2d').getImageData(0, 0, c.width, c.height).data; const seen = new Set();
        for (let i = 0; i < data.length; i += 4) seen.add(data[i] << 16 | data[i + 1] << 8 | data[i + 2]); return seen.size; };
      said.push(window.wrong, document.documentElement.dataset.ready, pixels('canvas') > 8, pixels('profile') > 2);
    """)  # fmt: skip
    assert said == [[], "80", True, True]


def test_n_and_p_walk_along_the_critical_path_and_read_the_ops_out(tmp_path, small):
    said = told(tmp_path, small, f"press('n'); {SAID} press('n'); {SAID} press('p'); {SAID} press('p'); {SAID}")
    assert said == [f"chain, 900 µs, on cpu/0, op {n} of 20 on the critical path" for n in (1, 2, 1, 20)]


def test_keys_pan_zoom_step_search_and_let_go(tmp_path, small):
    said = told(tmp_path, small, f"""
      const details = () => said.push(document.querySelector('#details h2')?.textContent ?? null);
      press('+'); press('ArrowRight'); press('0'); press('n'); press('f'); press(']'); {SAID} press('['); {SAID}
      const box = document.getElementById('find'); box.value = 'var2'; box.dispatchEvent(new Event('input'));
      said.push(document.getElementById('found').textContent); press('Enter'); {SAID}
      press('?'); said.push(document.getElementById('keys').hidden);
      press('Escape'); said.push(document.getElementById('details').hidden, document.getElementById('found').textContent);
    """)  # fmt: skip
    assert said[0].endswith("op 2 of 20 on the critical path") and said[1].endswith("op 1 of 20 on the critical path")
    assert said[2:] == ["20 found", "side 2, 400 µs, on cpu/2", False, True, ""]


def test_rows_are_by_worker_pool_stage_and_op(tmp_path, small):
    said = told(tmp_path, small, """
      const select = document.getElementById('grouping');
      for (const by of [...select.options].map((o) => o.value)) {
        select.value = by; select.dispatchEvent(new Event('change'));
        document.getElementById('path').click(); said.push(document.getElementById('details').hidden); }
    """)  # fmt: skip
    assert said == [False] * 4


def test_a_hundred_thousand_ops_are_drawn(tmp_path):
    page = engine.explain(made(100_000)).html()
    said = told(tmp_path, page, f"said.push(document.documentElement.dataset.ready); press('n'); {SAID}")
    assert said == ["100000", "chain, 900 µs, on cpu/0, op 1 of 25000 on the critical path"]


def test_the_page_prints(tmp_path, small):
    paper = tmp_path / "page.pdf"
    browse(tmp_path, small, f"--print-to-pdf={paper}", "--no-pdf-header-footer")
    assert paper.read_bytes().startswith(b"%PDF") and paper.stat().st_size > 20_000


def test_both_colour_schemes_are_drawn(tmp_path, small):
    shots = []
    for scheme in (0, 1):
        picture = tmp_path / f"{scheme}.png"
        browse(tmp_path, small, f"--blink-settings=preferredColorScheme={scheme}", f"--screenshot={picture}")
        shots.append(picture.read_bytes())
    assert all(shot.startswith(b"\x89PNG") for shot in shots) and shots[0] != shots[1]
