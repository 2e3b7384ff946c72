"""What a headless browser says of a page: broken images, and messages of its console.

A copy of the page beside it, with a script that counts its images once they are loaded, is opened.
"""

import html
import json
import re
import shutil
import subprocess
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
            browser(), "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
            "--enable-logging=stderr", f"--user-data-dir={profile}",
            "--virtual-time-budget=10000", *flags, address,
        ]  # fmt: skip
        return subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)


def _messages(done):
    return [line for line in done.stderr.splitlines() if "CONSOLE" in line]


def visit(address):
    """What a page is once its scripts have run, and the messages of the console."""
    done = _open(address, "--dump-dom")
    return done.stdout, _messages(done)


def counted(page, address):
    """What the script counts on a page, and the messages of the console; `address` of a path, where
    it is served."""
    copy = page.with_name("counted-" + page.name)
    copy.write_text(page.read_text(encoding="utf-8").replace("</body>", _COUNT), encoding="utf-8")
    try:
        done = _open(address(copy), "--dump-dom", "--window-size=1280,1000")
    finally:
        copy.unlink()
    found = re.search(r'<pre id="counted"[^>]*>(.*?)</pre>', done.stdout, re.DOTALL).group(1)
    return json.loads(html.unescape(found)), _messages(done)
