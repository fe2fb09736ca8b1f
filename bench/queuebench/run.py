"""Runs the harness without docker: its own bench.py, with a PostgreSQL of this machine and with adapters that are programs of this machine.

    python run.py HARNESS BINARIES run --systems millrace,river --phase warmup=warmup:30s ...

HARNESS is a checkout of github.com/hardbyte/postgresql-job-queue-benchmarking, BINARIES a folder with queuebench and river-bench. What
follows goes to bench.py as it is. Phases, load, metrics, results and plots are the harness's; replaced are the container with PostgreSQL (by a
new cluster with the harness's postgres.conf, at its port and with its user) and the ways to build and start adapters. Before a
cluster is discarded, what is in its tables is printed: jobs inserted, handled and not.
"""

import json
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
HARNESS, BINARIES = Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve()
sys.path.insert(0, str(HARNESS))

import psycopg  # noqa: E402
from bench_harness import adapters, orchestrator  # noqa: E402

CENSUS = {
    "millrace_bench": "millrace",
    "millrace_kafka_bench": "millrace",
    "river_bench": "river",
}
QUESTIONS = {
    "millrace": """select (select coalesce(sum(jobs), 0) from queuebench_inserted) as inserted, (select count(*) from millrace.processed) as handled,
        (select count(*) from millrace.outbox) as in_queue, 0 as taken_up_again""",
    "river": """select count(*) as inserted, count(*) filter (where state = 'completed') as handled,
        count(*) filter (where state <> 'completed') as in_queue, count(*) filter (where attempt > 1) as taken_up_again from river_job""",
}


class Cluster:
    """A PostgreSQL of this machine. It runs as the user postgres if this program is root, which PostgreSQL refuses."""

    def __init__(self):
        self.folder = None

    def postgres(self, program, *arguments):
        bin_folder = os.environ.get("PG_BIN") or subprocess.check_output(["pg_config", "--bindir"], text=True).strip()
        user = pwd.getpwnam("postgres").pw_uid if os.getuid() == 0 else None
        subprocess.run([f"{bin_folder}/{program}", *arguments], check=True, user=user, stdout=subprocess.DEVNULL, cwd="/tmp")

    def start(self, _image=None):
        if self.folder is None:
            self.folder = Path(tempfile.mkdtemp(prefix="queuebench-"))
            if os.getuid() == 0:
                shutil.chown(self.folder, "postgres")
            self.postgres("initdb", "-D", str(self.folder / "data"), "-U", adapters.PG_USER, "--auth=trust", "--encoding=UTF8", "--locale=C")
            with open(self.folder / "data/postgresql.conf", "a") as conf:
                conf.write((HARNESS / "postgres.conf").read_text())
                conf.write(f"\nlisten_addresses = '127.0.0.1'\nport = {adapters.PG_PORT}\nunix_socket_directories = '{self.folder}'\n")
        self.postgres("pg_ctl", "-D", str(self.folder / "data"), "-l", str(self.folder / "log"), "-w", "start")

    def pause(self, _image=None):
        self.postgres("pg_ctl", "-D", str(self.folder / "data"), "-m", "fast", "-w", "stop")

    def restart(self, _image=None):
        self.pause()
        self.start()

    def discard(self, _image=None):
        if self.folder is None:
            return
        self.census()
        self.pause()
        shutil.rmtree(self.folder)
        self.folder = None

    def census(self):
        for database, kind in CENSUS.items():
            try:
                with psycopg.connect(adapters.pg_url(database)) as conn, conn.cursor() as cur:
                    cur.execute(QUESTIONS[kind])
                    counted = dict(zip([c.name for c in cur.description], map(int, cur.fetchone())))
            except psycopg.Error:  # this system did not run in this cluster
                continue
            counted["lost"] = counted["inserted"] - counted["handled"] - counted["in_queue"]
            print("census", json.dumps({"database": database, **counted}), flush=True)


def program(name, without=None):
    def launch(manifest, overrides):
        argv = ["env", "-u", without] if without else []  # env becomes the program, so a signal reaches it
        return adapters.LaunchSpec(argv=[*argv, str(BINARIES / name)], env=adapters._base_env(manifest, overrides))

    return launch


def main():
    # Without docker nobody reads the harness's pacing tokens for an adapter that paces itself: after some minutes the pipe is full, and the
    # harness waits for ever when it closes it.
    os.environ.setdefault("PRODUCER_PACING", "adapter")
    cluster = Cluster()
    orchestrator.start_postgres, orchestrator.stop_postgres = cluster.start, cluster.discard
    orchestrator._compose_stop_postgres, orchestrator._compose_start_postgres = cluster.pause, cluster.start
    orchestrator._restart_postgres = cluster.restart
    for system, folder, launch in (
        ("millrace", HERE, program("queuebench", without="MILLRACE_KAFKA_BROKERS")),
        ("millrace-kafka", HERE / "kafka", program("queuebench")),
        ("river", HARNESS / "river-bench", program("river-bench")),
    ):
        adapters.ADAPTERS[system] = adapters.AdapterEntry(bench_dir=folder, builder=lambda _skip: None, launcher=launch)
    return orchestrator.main(sys.argv[3:])


if __name__ == "__main__":
    raise SystemExit(main())
