"""Spark's own Kafka connector, from Maven Central at its first use."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from bench.clients.servers import CannotServe

POM: Final = Path(__file__).resolve().parent / "pom.xml"


def connector_jars(spark_version: str) -> list[Path]:
    build = Path(os.environ.get("BUILD") or Path.home() / ".cache" / "orbitmq-bench")
    jars = build / f"spark-kafka-{spark_version}"
    if not (jars / ".done").exists():
        if shutil.which("mvn") is None:
            raise CannotServe("mvn is not installed; Spark's Kafka connector is fetched with Maven")
        fetch = ["mvn", "-q", "-B", "-f", str(POM), "dependency:copy-dependencies"]
        fetch += [f"-Dspark.version={spark_version}", f"-DoutputDirectory={jars}"]
        # Maven talks on its standard output, where figures belong.
        if subprocess.run(fetch, stdout=sys.stderr, check=False, timeout=600).returncode != 0:
            raise CannotServe("Spark's Kafka connector could not be fetched; Maven's reason is above")
        (jars / ".done").touch()
    return sorted(jars.glob("*.jar"))


def client_version(jars: list[Path]) -> str:
    (name,) = [jar.stem for jar in jars if jar.stem.startswith("kafka-clients-")]
    return name.removeprefix("kafka-clients-")
