"""Programs that tests need, and private Redis and PostgreSQL servers: on Unix sockets below a temporary directory.

python -m scripts.services            # tells what is here
python -m scripts.services install    # installs what is missing, where there is apt-get and the right to
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

START_LIMIT_S: Final = 30.0
STOP_LIMIT_S: Final = 15.0
PACKAGES: Final = {
    "redis-server": "redis-server",
    "postgres": "postgresql",
    "etcd": "etcd-server",
    "etcdctl": "etcd-client",
    "ip": "iproute2",
}
# Debian keeps PostgreSQL's own programs out of everybody's way.
POSTGRES_FOLDERS: Final = ("/usr/lib/postgresql", "/usr/local/pgsql", "/opt/homebrew/opt/postgresql")
# Where the programs for administrators are, which are not on everybody's path.
SYSTEM_FOLDERS: Final = "/usr/sbin:/sbin"
SAFE_USER: Final = "postgres"


def program(name: str) -> str | None:
    """Where a program is, if it is installed."""
    if found := shutil.which(name) or shutil.which(name, path=SYSTEM_FOLDERS):
        return found
    places = [
        place
        for folder in POSTGRES_FOLDERS
        for place in Path(folder).glob(f"*/bin/{name}")
        if place.is_file()
    ]
    return str(max(places)) if places else None


def missing() -> list[str]:
    """The programs that are not installed."""
    return [name for name in (*PACKAGES, "initdb", "pg_isready") if program(name) is None]


class Service:
    """One server process in a directory of its own."""

    def __init__(self, name: str, *, unprivileged: bool = False) -> None:
        self.name = name
        # Not below a test's own directory: a Unix socket's path has little room, and the server's user no
        # right to enter there.
        self.directory = Path(tempfile.mkdtemp(prefix=f"orbitmq-{name}-"))
        self.directory.chmod(0o755)
        self._user = SAFE_USER if unprivileged and os.geteuid() == 0 else None
        self._process: subprocess.Popen[bytes] | None = None
        if self._user:
            shutil.chown(self.directory, self._user)

    @property
    def pid(self) -> int:
        assert self._process is not None, f"{self.name} is not running"
        return self._process.pid

    def run(self, command: Sequence[str]) -> None:
        done = subprocess.run(
            command,
            user=self._user,
            cwd=self.directory,
            capture_output=True,
            text=True,
            timeout=START_LIMIT_S,
        )
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")

    def launch(self, command: Sequence[str], is_ready: Callable[[], bool]) -> None:
        assert self._process is None, f"{self.name} runs already"
        log = self.directory / "log"
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                command, user=self._user, cwd=self.directory, stdout=output, stderr=subprocess.STDOUT
            )
        deadline = time.monotonic() + START_LIMIT_S
        while not is_ready():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                raise RuntimeError(f"{self.name} did not start:\n{log.read_text('utf-8', 'replace')}")
            time.sleep(0.02)

    def stop(self) -> None:
        """Ends the process at once; the directory stays for another start."""
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        try:
            process.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(STOP_LIMIT_S)

    def remove(self) -> None:
        self.stop()
        shutil.rmtree(self.directory, ignore_errors=True)


class RedisService(Service):
    """Redis without any file but its socket: after `stop` and `start` it has forgotten everything."""

    def __init__(self) -> None:
        super().__init__("redis")
        self._socket = self.directory / "redis.sock"
        self.url = f"unix://{self._socket}"
        self.start()

    def start(self) -> None:
        command = [
            program("redis-server") or "redis-server",
            "--port",
            "0",
            "--unixsocket",
            str(self._socket),
        ]
        command += ["--save", "", "--appendonly", "no", "--dir", str(self.directory)]
        self._socket.unlink(missing_ok=True)
        self.launch(command, self._socket.exists)


class PostgresService(Service):
    """PostgreSQL with one database, open to whoever reaches its socket; `stop` and `start` keep the data.

    It refuses to run as root, who then runs it as the user that Debian's package made for it.
    """

    def __init__(self) -> None:
        super().__init__("postgres", unprivileged=True)
        self._data = self.directory / "data"
        self.dsn = f"postgresql://orbitmq@/postgres?host={self.directory}"
        options = [
            "--username",
            "orbitmq",
            "--auth",
            "trust",
            "--encoding",
            "UTF8",
            "--no-sync",
            "--locale",
            "C",
        ]
        self.run([program("initdb") or "initdb", "--pgdata", str(self._data), *options])
        self.start()

    def start(self) -> None:
        command = [program("postgres") or "postgres", "-D", str(self._data), "-k", str(self.directory)]
        # A fast disk is not what is tested; a commit is one all the same as soon as the server says so.
        command += ["-c", "listen_addresses=", "-c", "fsync=off", "-c", "max_connections=60"]
        question = [program("pg_isready") or "pg_isready", "-q", "-h", str(self.directory), "-d", "postgres"]
        self.launch(command, lambda: subprocess.run(question, timeout=START_LIMIT_S).returncode == 0)

    def stop(self) -> None:
        if self._process is not None:
            self._process.send_signal(2)  # SIGINT is PostgreSQL's fast stop: it waits for no client
        super().stop()


@contextlib.contextmanager
def redis_and_postgres() -> Iterator[tuple[RedisService, PostgresService]]:
    """Both, started for the length of the block."""
    with contextlib.ExitStack() as stack:
        redis = RedisService()
        stack.callback(redis.remove)
        postgres = PostgresService()
        stack.callback(postgres.remove)
        yield redis, postgres


def install() -> int:
    """Installs the Debian packages of what is missing; does nothing where all is there."""
    packages = sorted({PACKAGES.get(name, "postgresql") for name in missing()})
    if not packages:
        return 0
    if shutil.which("apt-get") is None:
        print(f"missing: {', '.join(missing())}; install them with this system's package manager")
        return 1
    prefix = [] if os.geteuid() == 0 else ["sudo", "-n"]
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for step in (["update", "-q"], ["install", "-y", "-q", "--no-install-recommends", *packages]):
        done = subprocess.run([*prefix, "apt-get", *step], env=environment)
        if done.returncode:
            return done.returncode
    return 1 if missing() else 0


def main(arguments: Sequence[str]) -> int:
    if arguments == ["install"]:
        return install()
    for name in PACKAGES:
        print(f"{name:14} {program(name) or 'not installed'}")
    if os.geteuid() == 0 and SAFE_USER not in {entry.pw_name for entry in pwd.getpwall()}:
        print(f"there is no user {SAFE_USER}, and PostgreSQL does not run as root")
    return 1 if missing() else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
