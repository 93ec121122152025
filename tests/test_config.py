"""zcloop.Config: defaults, the environment, and errors that say what is valid."""
import dataclasses

import pytest

import zcloop
from zcloop import Config

DEFAULTS = {
    "receive": "auto", "send": "auto", "zerocopy_threshold": None, "zerocopy_linger": 120.0,
    "friends": "off", "busy_poll": "auto", "fast_streams": True, "arena_bytes": None,
    "tune_malloc": False,
}


def test_fields_and_defaults(monkeypatch):
    assert dataclasses.asdict(Config()) == DEFAULTS
    assert list(DEFAULTS) == [field.name for field in dataclasses.fields(Config)]


def test_frozen_and_hashable():
    config = Config()
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.receive = "copy"
    assert config == Config()
    assert hash(config) == hash(Config())
    assert dataclasses.replace(config, receive="copy").receive == "copy"


@pytest.mark.parametrize("field, values", [
    ("receive", ["auto", "copy", "map"]), ("send", ["auto", "copy", "zerocopy", "pages"]),
    ("friends", ["off", "on"]), ("busy_poll", ["auto", "off", 1, 50, 1000]),
    ("fast_streams", [True, False]), ("tune_malloc", [True, False]),
    ("zerocopy_threshold", [None, 1, 65536]), ("arena_bytes", [None, 1 << 26]),
    ("zerocopy_linger", [0.001, 5, 30.0])])
def test_valid_values(field, values):
    for value in values:
        assert getattr(Config(**{field: value}), field) == value


@pytest.mark.parametrize("field, value, valid", [
    ("receive", "zerocopy", ["auto", "copy", "map"]), ("receive", None, ["auto", "copy", "map"]),
    ("receive", "MAP", ["map"]), ("send", "map", ["auto", "copy", "zerocopy", "pages"]),
    ("friends", True, ["off", "on"]), ("busy_poll", "on", ["auto", "off", "microseconds"]),
    ("busy_poll", 0, ["microseconds"]), ("busy_poll", -5, ["microseconds"]),
    ("busy_poll", 1e3, ["microseconds"]), ("busy_poll", True, ["microseconds"]),
    ("busy_poll", 10**6, ["microseconds"]), ("fast_streams", 1, ["True", "False"]),
    ("fast_streams", "yes", ["True", "False"]), ("tune_malloc", None, ["True", "False"]),
    ("zerocopy_threshold", 0, ["bytes"]), ("zerocopy_threshold", "1000", ["bytes"]),
    ("zerocopy_threshold", True, ["bytes"]),
    ("zerocopy_linger", 0, ["seconds"]),
    ("zerocopy_linger", "1", ["seconds"]), ("zerocopy_linger", True, ["seconds"]),
    ("zerocopy_linger", float("nan"), ["seconds"]), ("zerocopy_linger", 1e9, ["seconds"]),
    ("arena_bytes", -1, ["bytes"]),
    ("arena_bytes", 1.5, ["bytes"])])
def test_wrong_values(field, value, valid):
    with pytest.raises(ValueError) as caught:
        Config(**{field: value})
    message = str(caught.value)
    assert field in message
    assert repr(value) in message
    for word in valid:
        assert word in message


def test_unknown_field():
    with pytest.raises(TypeError, match="recieve"):
        Config(recieve="map")


@pytest.mark.parametrize("variable, text, value", [
    ("ZCLOOP_RECEIVE", "map", "map"), ("ZCLOOP_SEND", "zerocopy", "zerocopy"),
    ("ZCLOOP_ZEROCOPY_THRESHOLD", "32768", 32768), ("ZCLOOP_FRIENDS", "on", "on"),
    ("ZCLOOP_BUSY_POLL", "off", "off"), ("ZCLOOP_BUSY_POLL", "20", 20),
    ("ZCLOOP_FAST_STREAMS", "0", False), ("ZCLOOP_FAST_STREAMS", "true", True),
    ("ZCLOOP_ARENA_BYTES", "67108864", 1 << 26), ("ZCLOOP_TUNE_MALLOC", "1", True),
    ("ZCLOOP_TUNE_MALLOC", "off", False)])
def test_environment(variable, text, value):
    field = variable.removeprefix("ZCLOOP_").lower()
    assert getattr(Config.from_env({variable: text}), field) == value
    assert Config.from_env({variable: text}) == Config(**{field: value})


@pytest.mark.parametrize("variable, text, valid", [
    ("ZCLOOP_RECEIVE", "zero", ["auto", "copy", "map"]), ("ZCLOOP_SEND", "Copy", ["auto", "copy"]),
    ("ZCLOOP_FRIENDS", "maybe", ["off", "on"]), ("ZCLOOP_BUSY_POLL", "fast", ["auto", "off"]),
    ("ZCLOOP_BUSY_POLL", "-1", ["microseconds"]), ("ZCLOOP_FAST_STREAMS", "2", ["true", "false"]),
    ("ZCLOOP_ARENA_BYTES", "64M", ["bytes"]), ("ZCLOOP_ZEROCOPY_THRESHOLD", "0", ["bytes"])])
def test_wrong_environment(variable, text, valid):
    with pytest.raises(ValueError) as caught:
        Config.from_env({variable: text})
    message = str(caught.value)
    assert variable in message
    assert repr(text) in message or text in message
    for word in valid:
        assert word in message


def test_misspelt_variable():
    with pytest.raises(ValueError, match=r"ZCLOOP_RECIEVE.*ZCLOOP_RECEIVE"):
        Config.from_env({"ZCLOOP_RECIEVE": "map"})


def test_a_loop_reads_the_environment(monkeypatch):
    monkeypatch.setenv("ZCLOOP_RECEIVE", "nonsense")
    with pytest.raises(ValueError, match="ZCLOOP_RECEIVE"):
        zcloop.new_event_loop()
    zcloop.new_event_loop(Config()).close()         # a given Config is used as it is


def test_a_loop_wants_a_config():
    with pytest.raises(TypeError, match="Config"):
        zcloop.new_event_loop("map")


def test_an_empty_variable_is_as_good_as_none():
    assert zcloop.Config.from_env({"ZCLOOP_SEND": "", "ZCLOOP_BUSY_POLL": ""}) == zcloop.Config()
