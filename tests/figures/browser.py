"""Does a page open in a headless browser? Broken images and messages of its console: `python
tests/figures/browser.py PAGE`.

A copy of the page beside it, with a script that counts its images once they are loaded, is what is
opened; then the page itself.
"""

import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

NAMES = ("chromium", "chromium-browser", "google-chrome")
_COUNT = """<script>addEventListener("load", () => {
  const all = [...document.images];
  const failed = all.filter(i => !(i.complete && i.naturalWidth > 0));
  const broken = failed.map(i => i.getAttribute("src"));
  const told = document.createElement("pre");
  told.id = "counted";
  const silent = all.filter(i => !i.alt).length;
  told.textContent = JSON.stringify({images: all.length, broken: broken, silent: silent,
    wide: document.documentElement.scrollWidth > innerWidth});
  document.body.append(told);
});</script></body>"""


def browser():
    """The path of a browser, or None."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


def _open(page, *flags):
    with tempfile.TemporaryDirectory() as profile:
        command = [
            browser(),
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--enable-logging=stderr",
        ]
        command += [
            f"--user-data-dir={profile}",
            "--virtual-time-budget=10000",
            *flags,
            page.resolve().as_uri(),
        ]
        return subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)


def inspect(page, width=1280):
    """(images, broken ones, images without a text, whether the page is wider than its window,
    messages of the console).
    """
    page = pathlib.Path(page)
    copy = page.with_name("counted-" + page.name)
    copy.write_text(page.read_text(encoding="utf-8").replace("</body>", _COUNT), encoding="utf-8")
    try:
        done = _open(copy, "--dump-dom", f"--window-size={width},1000")
    finally:
        copy.unlink()
    found = json.loads(re.search(r'<pre id="counted">(.*?)</pre>', done.stdout, re.DOTALL).group(1))
    plain = _open(page, "--dump-dom")
    messages = [line for line in (done.stderr + plain.stderr).splitlines() if "CONSOLE" in line]
    return found["images"], found["broken"], found["silent"], found["wide"], messages


def screenshot(page, picture, width=1280, height=2000):
    """A picture of the top of the page."""
    _open(pathlib.Path(page), f"--screenshot={picture}", f"--window-size={width},{height}")


if __name__ == "__main__":
    counted, broken, silent, wide, messages = inspect(sys.argv[1])
    print(
        f"{counted} images; broken: {broken or 'none'}; without text: {silent}; wider than the "
        f"window: {wide}"
    )
    print(f"console: {messages or 'silent'}")
    sys.exit(bool(broken or silent or messages))
