"""The page's tests need a browser; ``make test-demo`` asks for them."""


def pytest_ignore_collect(collection_path, config):
    if collection_path.name == "test_page.py" and not config.getoption("--browser"):
        return True
    return None
