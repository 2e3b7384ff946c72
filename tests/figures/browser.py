"""Does a page open in a headless browser? Broken images and messages of its console: `python
tests/figures/browser.py PAGE`.

A copy of the page beside it, with a script that counts its images once they are loaded, is what is
opened; then the page itself.
"""

import html
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
  // the title beside a thumbnail of the gallery is its text
  const silent = all.filter(i => !i.alt && !i.closest('.sphx-glr-thumbcontainer')).length;
  told.textContent = JSON.stringify({images: all.length, broken: broken, silent: silent,
    wide: document.documentElement.scrollWidth > innerWidth});
  document.body.append(told);
});</script></body>"""


def browser():
    """The path of a browser, or None."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


def _open(address, *flags):
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
            address,
        ]
        return subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)


def _file(page):
    return page.resolve().as_uri()


def _messages(done):
    return [line for line in done.stderr.splitlines() if "CONSOLE" in line]


def visit(address):
    """What a page is once its scripts have run, and the messages of the console."""
    done = _open(address, "--dump-dom")
    return done.stdout, _messages(done)


def counted(page, width=1280, address=_file):
    """What the script counts on a page, and the messages of the console; `address` of a path, where
    it is served.
    """
    copy = page.with_name("counted-" + page.name)
    copy.write_text(page.read_text(encoding="utf-8").replace("</body>", _COUNT), encoding="utf-8")
    try:
        done = _open(address(copy), "--dump-dom", f"--window-size={width},1000")
    finally:
        copy.unlink()
    found = re.search(r'<pre id="counted"[^>]*>(.*?)</pre>', done.stdout, re.DOTALL).group(1)
    return json.loads(html.unescape(found)), _messages(done)


def inspect(page, width=1280):
    """(images, broken ones, images without a text, whether the page is wider than its window,
    messages of the console).
    """
    page = pathlib.Path(page)
    found, messages = counted(page, width)
    messages += visit(_file(page))[1]
    return found["images"], found["broken"], found["silent"], found["wide"], messages


def screenshot(page, picture, width=1280, height=2000):
    """A picture of the top of the page."""
    address = page if str(page).startswith("http") else _file(pathlib.Path(page))
    _open(address, f"--screenshot={picture}", f"--window-size={width},{height}")


if __name__ == "__main__":
    counted, broken, silent, wide, messages = inspect(sys.argv[1])
    print(
        f"{counted} images; broken: {broken or 'none'}; without text: {silent}; wider than the "
        f"window: {wide}"
    )
    print(f"console: {messages or 'silent'}")
    sys.exit(bool(broken or silent or messages))
