"""The program of "Run it where you work" on a standalone cluster, by spark-submit, as that page says."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import children
import pyarrow.parquet as pq
import pyspark
import pytest

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.fault]

PAGE = (Path(__file__).parents[2] / "docs" / "where-to-run.md").read_text(encoding="utf-8")
PROGRAM = re.search(r"<!-- file: hours.py -->\n```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)[1]
TRIPS = "tail,at,delay\nN1,2013-01-01 05:10:00,4\nN1,2013-01-01 05:40:00,16\nN2,2013-01-01 06:00:00,1\n"


def submit(folder, *options):
    """Run the page's program over the files in the folder; the rows that it has stored by then."""
    done = subprocess.run(
        [str(Path(pyspark.__file__).parent / "bin" / "spark-submit"), *options, "hours.py", str(folder)],
        cwd=folder,
        env=children.environment(PENSTOCK_LOCAL_DIR=str(folder / "local")),
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, "\n".join(line for line in done.stderr.splitlines() if " INFO " not in line)
    rows = [row for file in (folder / "hours").rglob("*.parquet") for row in pq.ParquetFile(file).read().to_pylist()]
    return sorted((row["tail"], row["flights"], row["mean_delay"]) for row in rows)


def test_program_of_the_page_runs_on_a_cluster(tmp_path):
    (tmp_path / "hours.py").write_text(PROGRAM)
    (tmp_path / "trips").mkdir()
    (tmp_path / "trips" / "1.csv").write_text(TRIPS)
    with children.standalone_cluster(tmp_path) as url:
        stored = submit(tmp_path, "--master", url, "--executor-memory", "512m")
        logs = [(tmp_path / f"worker{i}.log").read_text(errors="replace") for i in range(2)]
    assert all("Asked to launch executor" in log for log in logs)
    assert stored == [("N1", 2, 10.0), ("N2", 1, 1.0)]
