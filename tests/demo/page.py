"""The demo's page in a real Chromium, and what the tests ask of it."""
import contextlib
import os
import shutil

from demo_client import sha256, wait_for
from selenium import webdriver
from selenium.common import NoSuchElementException, StaleElementReferenceException
from selenium.webdriver import ActionChains
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By

# No request but to the demo: a browser of its own has much to say to its maker.
ARGUMENTS = [
    "--headless", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage",
]
IDLE = "Nothing is being sent."
PHONE, DESK = (390, 844), (1280, 900)


@contextlib.contextmanager
def chromium():
    browser, driver = shutil.which("chromium"), shutil.which("chromedriver")
    assert browser and driver, (
        "the page's tests need Chromium and its driver "
        "(Debian, Ubuntu: apt install chromium chromium-driver)")
    options = webdriver.ChromeOptions()
    options.binary_location = browser
    for argument in ARGUMENTS:
        options.add_argument(argument)
    if os.geteuid() == 0:
        options.add_argument("--no-sandbox")    # it refuses to run as root with one
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    service = Service(driver)
    chrome = webdriver.Chrome(options=options, service=service)
    try:
        yield chrome
    finally:
        chrome.quit()


class Page:
    def __init__(self, chrome, base, downloads):
        self.chrome = chrome
        self.downloads = downloads
        downloads.mkdir()
        chrome.execute_cdp_cmd("Browser.setDownloadBehavior", {
            "behavior": "allow", "downloadPath": str(downloads)})
        self.look("light", DESK)
        chrome.get_log("browser")       # what earlier pages said
        chrome.get(f"{base}/")
        self.wait_connected()

    def find(self, selector):
        return self.chrome.find_element(By.CSS_SELECTOR, selector)

    def all(self, selector):
        return self.chrome.find_elements(By.CSS_SELECTOR, selector)

    def run(self, script, *arguments):
        return self.chrome.execute_script(script, *arguments)

    def wait(self, predicate):
        """Elements that are replaced just now are found by the next look."""
        def look():
            try:
                return predicate()
            except (NoSuchElementException, StaleElementReferenceException):
                return False
        wait_for(look)

    # -- states ---------------------------------------------------------------

    def connection(self):
        return self.find("#connection").get_attribute("data-state"), self.find("#connection").text

    def wait_connected(self, loop=""):
        self.wait(lambda: self.connection()[0] == "open" and loop in self.connection()[1])

    def message(self):
        return self.find("#message").text, self.find("#message").get_attribute("data-kind")

    def wait_idle(self):
        """The job that was started has ended; its message."""
        self.wait(lambda: self.find("#doing").text == IDLE and self.message()[0]
                  and self.find("#cancel").get_attribute("disabled"))
        return self.message()

    def files(self):
        return [row.text for row in self.all("#files .name strong")]

    def verdict(self):
        """That on the newest file, which is the first."""
        return self.find("#files .verdict").text, self.find("#files .verdict").get_attribute(
            "data-kind")

    def bars(self):
        """{kind/loop: value} of the throughput chart, as far as there are values."""
        bars = self.find("#comparison figure").find_elements(By.CSS_SELECTOR, "[data-bar]")
        found = {bar.get_attribute("data-bar"): bar.get_attribute("data-value") for bar in bars}
        return {name: float(value) for name, value in found.items() if value}

    def drawn(self, series):
        """The heights of a live line's points; 0 is the axis."""
        path = self.find(f'[data-series="{series}"]').get_attribute("d")
        points = path.replace("M", "L").replace("h.01", "").split("L")[1:]
        return [112 - float(point.split()[1]) for point in points]

    # -- actions ----------------------------------------------------------------

    def choose(self, path):
        self.find("#file").send_keys(str(path))

    def generate(self, mebibytes):
        self.set_size(mebibytes)
        self.find("#generate-button").click()

    def set_size(self, mebibytes):
        self.find("#size").clear()
        self.find("#size").send_keys(str(mebibytes))

    def switch(self, loop):
        self.find(f'#loops [value="{loop}"]').click()
        self.wait_connected(loop)
        self.wait(lambda: self.find("#loops input").is_enabled())

    def press(self, *keys):
        ActionChains(self.chrome).send_keys(*keys).perform()

    def focused(self):
        """Id or value of the element with the focus."""
        return self.run("return document.activeElement.id || document.activeElement.value")

    def button(self, text):
        """Of the newest file."""
        [found] = [b for b in self.find("#files li").find_elements(By.CSS_SELECTOR, "a, button")
                   if b.text == text]
        return found

    def save(self, text, name, size):
        """Click a download link; the digest of what arrived on disk."""
        self.button(text).click()
        target = self.downloads / name
        self.wait(lambda: target.exists() and target.stat().st_size == size)
        digest = sha256(target.read_bytes())
        target.unlink()
        return digest

    # -- looks --------------------------------------------------------------------

    def look(self, theme, size):
        width, height = size
        self.chrome.execute_cdp_cmd("Emulation.setEmulatedMedia", {
            "features": [{"name": "prefers-color-scheme", "value": theme}]})
        self.chrome.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {
            "width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600})

    def picture(self, folder, name, theme, size):
        """The whole page as a PNG."""
        self.look(theme, size)
        self.look(theme, (size[0], self.run("return document.documentElement.scrollHeight")))
        folder.mkdir(parents=True, exist_ok=True)
        self.chrome.save_screenshot(str(folder / f"{name}-{theme}-{size[0]}.png"))
        self.look(theme, size)

    def errors(self):
        return [entry["message"] for entry in self.chrome.get_log("browser")
                if entry["level"] == "SEVERE"]
