"""What .ci/run tries is what there is."""

import runpy
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_every_target_of_the_makefile_is_tried_alone():
    script = runpy.run_path(str(ROOT / ".ci" / "targets.py"))
    assert {"test", "test-integrations", "test-readme", "publish"} <= set(script["targets"]())


def test_every_command_of_the_readme_is_run_but_for_those_that_are_run_elsewhere():
    script = runpy.run_path(str(ROOT / ".ci" / "readme.py"))
    commands = "\n".join(script["blocks"]((ROOT / "README.md").read_text(encoding="utf-8"))).splitlines()
    assert commands[0].startswith("pip install -c constraints.txt ")
    assert sum(command.startswith("matrix-adagrad ") for command in commands) == 2
    assert not any(command.startswith("make ") for command in commands)
