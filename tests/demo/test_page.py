"""The demo's page in a real Chromium: what is uploaded through it comes back the same both ways,
the charts move, the loop can be switched and compared, whatever goes wrong is said in words, and
it can be read and used at both widths, in both themes, and with the keyboard."""
import os
import pathlib
import re
import signal

import pytest
from demo_client import MIB, Command, noise, sha256
from page import DESK, PHONE, Page, chromium
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

LOOPS = ("asyncio", "uvloop", "zcloop")
SIZE = 20 * MIB + 4321
LOST = "net::ERR_"      # what a lost connection leaves in the console


@pytest.fixture(scope="module")
def chrome():
    with chromium() as found:
        yield found


@pytest.fixture
def demo(tmp_path):
    with Command(tmp_path) as found:
        yield found


@pytest.fixture
def page(chrome, demo, tmp_path):
    found = Page(chrome, demo.base, tmp_path / "downloads")
    yield found
    errors = found.errors()
    chrome.get("about:blank")
    assert not [error for error in errors if LOST not in error and "status of" not in error]


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "some file.bin"
    path.write_bytes(noise(SIZE))
    return path


def test_a_file_goes_up_and_comes_back(page, file):
    assert page.drawn("in") == [] or max(page.drawn("in")) == 0
    page.choose(file)
    text, kind = page.wait_idle()
    assert text.startswith("Uploaded at ") and kind == "good"
    assert page.files() == [file.name]
    digest = sha256(noise(SIZE))
    assert page.verdict() == (f"Identical to what was sent. SHA-256 {digest}", "good")
    page.wait(lambda: max(page.drawn("in")) > 10)
    assert page.drawn("CPU") and page.drawn("wake-ups")

    assert page.save("Download", file.name, SIZE) == digest
    assert page.save("As static file", file.name, SIZE) == digest
    page.wait(lambda: max(page.drawn("out")) > 10)

    page.button("Compare").click()
    page.wait(lambda: page.verdict()[0].startswith(
        "Identical: what was sent, the download, the static file."))
    assert page.verdict()[1] == "good"
    assert float(page.find('[data-way="in_copied"]').get_attribute("width")) > 0
    page.run("location.reload()")       # the figures are the server's, not the page's
    page.wait_connected()
    page.wait(lambda: page.bars().keys() == {f"{kind}/zcloop" for kind in
                                             ("upload", "download", "static")})
    assert all(value > 0 for value in page.bars().values())


def test_a_dropped_file(page):
    page.run("""
        const data = new DataTransfer();
        data.items.add(new File(["dropped"], "dropped.txt"));
        for (const name of ["dragover", "drop"]) {
          document.getElementById("drop").dispatchEvent(
            new DragEvent(name, {dataTransfer: data, bubbles: true, cancelable: true}));
        }""")
    assert page.wait_idle()[0].startswith("Uploaded.")
    assert page.files() == ["dropped.txt"]
    page.button("Delete").click()
    page.wait(lambda: page.files() == [])
    assert page.find("#no-files").is_displayed()


def test_a_difference_is_noticed(page, demo, file):
    page.choose(file)
    page.wait_idle()
    [stored] = demo.folders()[0].glob("*.data")
    with stored.open("r+b") as data:
        data.seek(9 * MIB)
        data.write(b"another byte")
    page.button("Compare").click()
    page.wait(lambda: page.verdict()[1] == "bad")
    assert page.verdict()[0] == (
        f"Not identical to what was sent. It differs between bytes {8 * MIB} and {12 * MIB}.")
    assert page.wait_idle()[1] == "bad"


def test_switching_the_loop(page, demo):
    page.generate(16)
    page.wait_idle()
    page.switch("uvloop")
    assert demo.json("/api/state")["loop"] == "uvloop"
    assert page.files() == ["generated data"]
    page.generate(16)
    page.wait_idle()
    page.wait(lambda: page.bars().keys() == {"upload/uvloop", "upload/zcloop"})
    assert "uvloop doesn't count it" in page.find("#live").text


def test_running_on_every_loop(page, request):
    page.switch("uvloop")
    page.set_size(32)
    page.find("#run-all").click()
    assert page.wait_idle() == ("Done. The figures are below, side by side.", "good")
    assert page.bars().keys() == {f"{kind}/{loop}" for kind in ("upload", "download", "static")
                                  for loop in LOOPS}
    assert not page.all("#results tr[data-empty]")
    assert len(page.all("#results tr")) == 9
    assert page.files() == []
    page.wait_connected("uvloop")
    folder = request.config.getoption("--screenshots")
    if folder:
        page.generate(16)
        page.wait_idle()
        for theme in ("light", "dark"):
            for size in (DESK, PHONE):
                page.picture(pathlib.Path(folder), "compared", theme, size)


# -- what goes wrong ----------------------------------------------------------------


def keep(page, request, name):
    folder = request.config.getoption("--screenshots")
    if folder:
        page.picture(pathlib.Path(folder), name, "light", DESK)
        page.picture(pathlib.Path(folder), name, "dark", PHONE)


def test_a_file_that_is_too_large(chrome, tmp_path, request):
    large = tmp_path / "large.bin"
    large.write_bytes(noise(2 * MIB))
    with Command(tmp_path, "--max-size", "1M") as demo:
        page = Page(chrome, demo.base, tmp_path / "downloads")
        page.choose(large)
        text, kind = page.wait_idle()
        assert kind == "bad"
        assert text.startswith("“large.bin” is too large: it has 2 MiB, and this server takes at "
                               "most 1 MiB.")
        assert page.files() == []
        keep(page, request, "too-large")
        # The server's own refusals are shown in its words.
        for _ in range(4):
            page.generate(1)
            page.wait_idle()
        page.generate(1)
        page.wait(lambda: "Delete files from the list" in page.message()[0])
        assert page.message()[1] == "bad"
        assert len(page.files()) == 4
        chrome.get("about:blank")


@pytest.mark.parametrize(("most", "value", "named"), [
    ("8G", "1024", "1 GiB"), ("5.5M", "5", "5 MiB"), ("48K", "0.046875", "48 KiB")])
def test_what_the_page_offers_to_generate_fits(chrome, tmp_path, most, value, named):
    with Command(tmp_path, "--max-size", most) as demo:
        page = Page(chrome, demo.base, tmp_path / "downloads")
        assert page.find("#size").get_attribute("value") == value
        assert page.find("#generate-button").text == f"Generate {named}"
        if most != "8G":
            page.find("#generate-button").click()
            assert page.wait_idle()[1] != "bad"
            assert page.files() == ["generated data"]
        chrome.get("about:blank")


def test_a_server_that_is_killed_during_an_upload(page, demo, request):
    """The browser's own second attempt (on some errors it makes one) fails as well."""
    os.kill(demo.worker(), signal.SIGSTOP)  # so that the upload can't be over before
    page.generate(64)
    page.wait(lambda: page.find("#doing").text.startswith("Uploading"))
    worker = demo.worker()
    demo.process.kill()
    os.kill(worker, signal.SIGKILL)
    text, kind = page.wait_idle()
    assert kind == "bad"
    assert re.fullmatch(r"The connection to the server was lost after .+ of 64 MiB; what had "
                        r"arrived is thrown away\. Try again when it is back\.", text)
    page.wait(lambda: page.connection()[0] == "lost")
    keep(page, request, "lost")


def test_a_worker_that_is_killed_during_an_upload(page, demo, request):
    """The upload fails, or the browser sends it again to the next worker; the restart is told."""
    worker = demo.worker()
    os.kill(worker, signal.SIGSTOP)
    page.generate(64)
    page.wait(lambda: page.find("#doing").text.startswith("Uploading"))
    os.kill(worker, signal.SIGKILL)
    page.wait(lambda: "The server was restarted" in page.message()[0])
    page.wait_idle()
    page.wait_connected("zcloop")
    keep(page, request, "restarted")
    before = len(page.files())
    page.generate(1)
    page.wait(lambda: len(page.files()) == before + 1)


def test_a_server_that_is_restarted_while_nothing_happens(page, demo):
    demo.kill_worker()
    page.wait(lambda: page.message()[1] == "bad")
    assert page.message()[0].startswith("The server was restarted")
    page.wait_connected("zcloop")


def test_a_demo_that_has_ended(page, demo):
    demo.process.terminate()
    demo.process.wait()
    page.wait(lambda: page.connection()[0] == "lost")
    assert page.connection()[1].startswith("No connection to the server. Is the demo still")
    for control in ("#file", "#generate-button", "#run-all", "#loops input"):
        assert not page.find(control).is_enabled()


def test_cancelling(page, demo):
    worker = demo.worker()
    os.kill(worker, signal.SIGSTOP)
    try:
        page.generate(64)
        page.wait(lambda: page.find("#cancel").is_enabled())
        assert not page.find("#generate-button").is_enabled()
        page.find("#cancel").click()
        assert page.wait_idle()[0] == "Cancelled."
    finally:
        os.kill(worker, signal.SIGCONT)
    page.generate(1)
    page.wait(lambda: page.files() == ["generated data"])


# -- how it looks and feels -----------------------------------------------------------


def test_the_keyboard_is_enough(page):
    page.press(Keys.TAB)
    assert page.focused() == "zcloop"
    page.press(Keys.ARROW_LEFT)
    page.wait_connected("uvloop")
    page.wait(lambda: page.focused() == "uvloop")
    order = []
    for _ in range(4):
        page.press(Keys.TAB)
        order.append(page.focused())
        outline = page.run("""
            const at = document.activeElement;
            const shown = at.id === "file" ? document.querySelector(".drop .button") : at;
            return getComputedStyle(shown).outlineStyle;""")
        assert outline == "solid", order
    assert order == ["file", "size", "generate-button", "run-all"]
    page.find("#size").send_keys(Keys.CONTROL + "a")
    page.press("1", Keys.ENTER)
    page.wait_idle()
    assert page.files() == ["generated data"]


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("size", [DESK, PHONE, (320, 600)], ids=["desk", "phone", "small"])
def test_nothing_is_clipped_or_too_faint(page, file, theme, size):
    page.look(theme, size)
    page.choose(file)
    page.wait_idle()
    assert page.run("return document.documentElement.scrollWidth <= innerWidth")
    outside = page.run("""
        const outside = [];
        for (const text of document.querySelectorAll("svg text")) {
          const chart = text.ownerSVGElement.getBoundingClientRect();
          const box = text.getBoundingClientRect();
          if (box.left < chart.left - 1 || box.right > chart.right + 1
              || box.top < chart.top - 1 || box.bottom > chart.bottom + 1) {
            outside.push(text.textContent);
          }
        }
        return outside;""")
    assert outside == []
    faint = page.run(CONTRAST)
    assert faint == []
    small = page.run("""
        return [...document.querySelectorAll("body *")].filter((at) => at.offsetParent
            && at.textContent.trim() && parseFloat(getComputedStyle(at).fontSize) < 12)
            .map((at) => at.textContent);""")
    assert small == []


# Texts whose contrast with what is behind them is below WCAG's 4.5 to 1, disabled ones left out.
CONTRAST = """
    const parse = (colour) => colour.match(/[\\d.]+/g).map(Number);
    const light = (colour) => {
      const [r, g, b] = parse(colour).map((c) => c / 255)
        .map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
      return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const behind = (at) => {
      for (; at; at = at.parentElement) {
        const colour = getComputedStyle(at).backgroundColor;
        if ((parse(colour)[3] ?? 1) > 0) return colour;
      }
    };
    const found = [];
    for (const at of document.querySelectorAll("body *")) {
      const own = [...at.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
      if (!own || at.closest(":disabled") || !at.getClientRects().length) continue;
      const style = getComputedStyle(at);
      const ink = at.ownerSVGElement ? style.fill : style.color;
      const [low, high] = [light(ink), light(behind(at))].sort((a, b) => a - b);
      if ((high + 0.05) / (low + 0.05) < 4.5) found.push(`${at.textContent} ${ink}`);
    }
    return found;
"""


def test_nothing_jumps(page, file):
    """Chromium's own measure of unexpected movement, from the load on; 0.1 counts as good."""
    page.choose(file)
    page.wait_idle()
    page.button("Compare").click()
    page.wait(lambda: page.verdict()[0].startswith("Identical: "))
    moved = page.chrome.execute_async_script("""
        const done = arguments[0];
        let sum = 0;
        new PerformanceObserver((list) => {
          for (const entry of list.getEntries()) sum += entry.value;
        }).observe({type: "layout-shift", buffered: true});
        requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(() => done(sum), 0)));
        """)
    assert moved < 0.02


def test_everything_has_a_name(page):
    """For those who don't see it: each control and chart says what it is."""
    page.generate(1)
    page.wait_idle()
    nameless = [at.get_attribute("outerHTML")[:80]
                for at in page.all("input, button, a, progress, fieldset, svg") if not
                at.accessible_name]
    assert nameless == []
    assert page.find("#message").get_attribute("role") == "alert"
    assert page.find("html").get_attribute("lang") == "en"
    assert page.chrome.find_elements(By.CSS_SELECTOR, "h1, h2")
