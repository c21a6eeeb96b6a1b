"""The same questions to every mitigation: it takes nothing away that the user did, and what the release takes, it takes."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "mitigations"))

from patchbench_mitigations import registry  # noqa: E402
from users_programs import SCENARIOS  # noqa: E402


@pytest.fixture(scope="module")
def came_of(tmp_path_factory: pytest.TempPathFactory) -> functools.cache:
    """What came of each scenario with one mitigation, in a process of its own with two threads."""

    @functools.cache
    def ran(slug: str) -> dict[str, str]:
        env = {name: value for name, value in os.environ.items() if not name.startswith("PATCHBENCH_")}
        env |= {"OMP_NUM_THREADS": "2", "PYTHONPATH": os.pathsep.join(sys.path)}
        words = [sys.executable, Path(__file__).with_name("users_programs.py"), slug, tmp_path_factory.mktemp(slug)]
        done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=120)
        found = {name: came for line in done.stdout.splitlines() for name, came in json.loads(line).items()}
        assert done.returncode == 0 and list(found) == list(SCENARIOS), done.stderr
        return found

    return ran


@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("slug", registry.slugs())
def test_takes_nothing_away_from_the_user(came_of: functools.cache, slug: str, scenario: str) -> None:
    assert came_of(slug)[scenario] == ""
