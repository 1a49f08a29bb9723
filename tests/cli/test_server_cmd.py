"""The servers' options: where a setting comes from, what is warned about, what is refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from orbitmq.cli.main import main
from orbitmq.cli.server_cmd import parse_broker, parse_namesrv, parse_server


def test_defaults_are_rocketmqs_ports() -> None:
    broker, namesrv, path, warnings = parse_server([])
    assert (namesrv.listen_port, broker.listen_port, broker.console_port) == (9876, 10911, 8080)
    assert path is None
    assert warnings == []


def test_options_reach_both_configurations(tmp_path: Path) -> None:
    data = str(tmp_path / "data")
    options = ["--data", data, "--namesrv-port", "1", "--port", "2", "--console-port", "0"]
    broker, namesrv, _, _ = parse_server([*options, "--set", "flushDiskType=ASYNC_FLUSH"])
    assert (namesrv.listen_port, broker.listen_port, broker.console_port) == (1, 2, 0)
    assert broker.store_path_root_dir == data
    assert not broker.sync_flush
    assert namesrv.kv_config_path == os.path.join(data, "namesrv", "kvConfig.json")


def test_later_sources_win_over_the_file(tmp_path: Path) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text("listenPort = 1\nbrokerName = from-file\nbrokerClusterName = from-file\n")
    broker, _, path, _ = parse_server(
        ["-c", str(conf), "--port", "2", "--set", "brokerClusterName=from-set", "--set", "listenPort=3"]
    )
    assert (broker.listen_port, broker.broker_name, broker.broker_cluster_name) == (
        3,
        "from-file",
        "from-set",
    )
    assert path == str(conf)


def test_the_files_port_is_the_brokers_not_the_name_servers(tmp_path: Path) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text("listenPort=12345\norderMessageEnable=true\n")
    broker, namesrv, _, warnings = parse_server(["-c", str(conf)])
    assert (broker.listen_port, namesrv.listen_port) == (12345, 9876)
    assert namesrv.order_message_enable
    assert warnings == []


def test_unknown_settings_are_named_in_a_warning(tmp_path: Path) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text("flushDiskTyp=ASYNC_FLUSH\n")
    for parse in (parse_server, parse_broker):
        *_, warnings = parse(["-c", str(conf), "--set", "noSuchThing=1"])
        assert len(warnings) == 2
        assert "flushDiskTyp" in warnings[0]
        assert "flushDiskType" in warnings[0]
        assert "noSuchThing" in warnings[1]


def test_a_broker_finds_its_name_server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)
    monkeypatch.delenv("ORBITMQ_NAMESRV", raising=False)
    assert parse_broker([])[0].namesrv_addr == "127.0.0.1:9876"
    monkeypatch.setenv("NAMESRV_ADDR", "env:1")
    assert parse_broker([])[0].namesrv_addr == "env:1"
    conf = tmp_path / "broker.conf"
    conf.write_text("namesrvAddr=file:1;file:2\n")
    assert parse_broker(["-c", str(conf)])[0].namesrv_addr == "file:1;file:2"
    assert parse_broker(["-c", str(conf), "-n", "a:1;b:2"])[0].namesrv_addr == "a:1;b:2"


def test_a_name_server_alone_takes_its_own_port() -> None:
    config, warnings = parse_namesrv(["--port", "7", "--set", "orderMessageEnable=true"])
    assert (config.listen_port, config.order_message_enable, warnings) == (7, True, [])


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["server", "--port", "x"], "'x' is not a port number"),
        (["server", "--port", "70000"], "not a port number"),
        (["server", "--nonsense"], "--nonsense"),
        (["server", "--set", "flushDiskType"], "expected key=value"),
        (["server", "--set", "flushDiskType=SOMETIMES"], "flushDiskType=SOMETIMES"),
        (["server", "-c", "no-such-file.conf"], "no-such-file.conf cannot be read"),
        (["broker", "--set", "listenPort=many"], "listenPort=many"),
        (["namesrv", "--port", "-1"], "--port"),
    ],
)
def test_wrong_use_is_one_line_and_exit_code_2(
    args: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(args) == 2
    err = capsys.readouterr().err
    assert err.startswith("orbitmq: ")
    assert words in err
    assert err.count("\n") == 1


def test_help_lists_the_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["server", "--help"]) == 0
    out = capsys.readouterr().out
    for option in ("--data", "--namesrv-port", "--port", "--console-port", "--config", "--set"):
        assert option in out
