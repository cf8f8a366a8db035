"""The text that ships with Python."""

from matrix_adagrad.datasets import python_text


def test_the_library_is_read_without_tests_tables_and_packages(tmp_path, monkeypatch):
    kept = ["abc.py", "json/decoder.py"]
    left_out = ["test/test_abc.py", "idlelib/idle_test/x.py", "encodings/cp437.py", "pydoc_data/topics.py"]
    left_out += ["html/entities.py", "_sysconfigdata__linux.py", "site-packages/torch/nn.py", "abc.pyc"]
    for name in kept[::-1] + left_out:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name, encoding="utf-8")
    monkeypatch.setattr(python_text.sysconfig, "get_path", lambda _: str(tmp_path))
    assert python_text.library_sources() == kept
