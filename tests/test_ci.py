"""What .ci/run tries is what there is, and what makes a release does what it says."""

import datetime
import io
import re
import runpy
import subprocess
import tarfile
import zipfile
from pathlib import Path

import pytest

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


def tar_of(names, when, mode):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        for name in names:
            member = tarfile.TarInfo(name)
            member.size, member.mtime, member.mode, member.uname = len(name), when, mode, f"user{when}"
            archive.addfile(member, io.BytesIO(name.encode()))
    return out.getvalue()


def zip_of(names, when, mode):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name in names:
            info = zipfile.ZipInfo(name, (2000 + when, 1, 1, 0, 0, 0))
            info.external_attr = mode << 16
            archive.writestr(info, name)
    return out.getvalue()


@pytest.mark.parametrize(("pack", "normalize"), [(tar_of, "normalized_tar"), (zip_of, "normalized_zip")])
def test_archives_of_the_same_files_have_the_same_bytes(pack, normalize, tmp_path, monkeypatch):
    """Whatever their order, times, owners and modes; and other files have other bytes."""
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    build, found = runpy.run_path(str(ROOT / ".ci" / "build.py")), []
    names = ["a/b.py", "a/c.py", "a-1.dist-info/RECORD", "a-1.dist-info/METADATA"]
    for own, when, mode in ((names, 1, 0o644), (names[::-1], 2, 0o600), ([*names, "a/d.py"], 1, 0o644)):
        (tmp_path / "archive").write_bytes(pack(own, when, mode))
        build[normalize](tmp_path / "archive")
        found.append((tmp_path / "archive").read_bytes())
    assert found[0] == found[1] != found[2]


@pytest.mark.parametrize("name", ["build", "audit"])
def test_the_tools_of_a_release_are_pinned_by_digest_wherever_they_come_from(name):
    text = (ROOT / ".ci" / f"{name}.txt").read_text(encoding="utf-8")
    pinned = dict(re.findall(r"^([\w-]+)==(.+?) \\$", text, re.M))
    assert set((ROOT / ".ci" / f"{name}.in").read_text(encoding="utf-8").split()) <= set(pinned)
    assert "://" not in text
    assert len(re.findall(r"==.* \\\n    --hash=sha256:[0-9a-f]{64}", text)) == len(pinned)
    tested = dict(re.findall(r"^([\w-]+)==(.+)$", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.M))
    tested = {own.lower().replace("_", "-"): version for own, version in tested.items()}
    assert {own: version for own, version in pinned.items() if tested.get(own, version) != version} == {}


@pytest.mark.parametrize(
    ("title", "words"),
    [
        ("1.2.0 (2030-01-02)", None),
        ("1.2.0 (unreleased)", 'begins with "## 1.2.0 (unreleased)", not with "## 1.2.0 (2030-01-02)"'),
        ("1.1.0 (2030-01-02)", "begins with 1.1.0, and the package has version 1.2.0"),
        ("1.2.0 (2029-12-31)", "is of 2029-12-31, and today is 2030-01-02"),
    ],
)
def test_a_release_has_its_version_and_its_day_in_the_changelog(title, words):
    release = runpy.run_path(str(ROOT / ".ci" / "release.py"))
    changelog = f"# Changes\n\nWords.\n\n## {title}\n\n- One.\n\n## 1.0.0 (2029-01-01)\n\n- Other.\n"
    assert release["section"](changelog) == (title, "- One.\n")
    found = release["problem"](title, "1.2.0", datetime.date(2030, 1, 2))
    assert found is None if words is None else words in found


@pytest.mark.parametrize(
    ("said", "error", "code", "words"),
    [
        ('{"dependencies": [{"name": "a", "version": "1", "vulns": []}]}', "", 0, "1 packages were looked up, 0 have"),
        ('{"dependencies": [{"name": "a", "version": "1", "vulns": [{"id": "CVE-1"}]}]}', "", 1, "a 1: CVE-1"),
        ("", "ERROR: Could not connect", 2, "NOT DONE.*Could not connect"),
        (
            '{"dependencies": [{"name": "a", "skip_reason": "unknown"}]}',
            "",
            2,
            "0 packages were looked up(?s:.*)NOT DONE, the service did not know 1 of 1: a",
        ),
    ],
    ids=["none", "some", "no answer", "no knowledge"],
)
def test_an_audit_that_could_not_ask_has_not_passed(said, error, code, words, monkeypatch, capsys, tmp_path):
    def answered(command, **_):
        return subprocess.CompletedProcess(command, 1, said, error)

    monkeypatch.setattr(subprocess, "run", answered)
    (tmp_path / "pins.txt").write_text("a==1 \\\n    --hash=sha256:0\n", encoding="utf-8")
    assert runpy.run_path(str(ROOT / ".ci" / "audit.py"))["main"](str(tmp_path / "pins.txt")) == code
    assert re.search(words, capsys.readouterr().out)
