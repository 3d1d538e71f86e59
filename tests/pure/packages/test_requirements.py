"""What cells ask for, told from their text alone: pip's lines and imports."""

from __future__ import annotations

import unicodedata
from types import SimpleNamespace
from typing import Any

import pytest

from cellgate.errors import PackagesNotAllowed
from cellgate.packages.imports import distribution_of, names_at_imports, python_of
from cellgate.packages.requirements import MAX_PIP_TEXT, MOST_PIP_LINES, changes_of_cell
from cellgate.packages.settings import PackageSettings
from cellgate_kernels.base.errors import InvalidInput
from cellgate_kernels.kernel.environment import MISSING
from cellgate_kernels.protocol.distributions import MOST_NAME
from tests.support.growth import IN_SECONDS


@pytest.mark.parametrize(
    ("code", "wanted"),
    [
        ("%pip install pandas", ["pandas"]),
        ("  !pip3 install -q pandas numpy # comment", ["pandas numpy"]),
        ("!python -m pip install --no-cache-dir 'pandas>=2' && echo done", ["pandas>=2"]),
        ("!{sys.executable} -m pip install pandas>=2", ["pandas"]),
        ("%pip install \\\n  pandas \\\n  numpy", ["pandas numpy"]),
        ("%pip install a\nimport a\n%pip install b[c]", ["a", "b[c]"]),
        ("!pip install --progress-bar off a 2>/dev/null", ["a"]),
        ("%%bash\nset -e\npip install a | tail -1\npython3 -m pip install b", ["a", "b"]),
        ("%%script bash\npip install a", ["a"]),
        ("%pip list\npip install a\nprint('%pip install b')", []),
        ("%%time\n%pip install a", ["a"]),
        ("%pip install", []),
        ("", []),
    ],
)
def test_lines_of_a_cell_that_run_pip(code: str, wanted: list[str]) -> None:
    found = [" ".join(str(requirement) for requirement in change.install) for change in changes_of_cell(code)]
    assert found == wanted


def test_lines_that_remove_or_upgrade() -> None:
    remove, upgrade = changes_of_cell("%pip uninstall -y Some_Name other\n%pip install -U name")
    assert (remove.install, remove.uninstall) == ((), ("some-name", "other"))
    assert (upgrade.upgrade, upgrade.names) == (True, {"name"})


@pytest.mark.parametrize(
    "line",
    [
        "-r requirements.txt",
        "-i http://127.0.0.1/ a",
        "--target=/tmp a",
        "-e .",
        "./a.whl",
        "git+https://h/a",
        "'a",
    ],
)
def test_lines_that_choose_a_source_are_refused(line: str) -> None:
    with pytest.raises(InvalidInput):
        changes_of_cell(f"%pip install {line}")


@pytest.mark.parametrize(
    "code", ["%pip install a\n" * (MOST_PIP_LINES + 1), f"%pip install {'a ' * MAX_PIP_TEXT}"]
)
def test_a_cell_runs_pip_in_so_many_lines(code: str) -> None:
    with pytest.raises(InvalidInput, match="in all"):
        changes_of_cell(code)


def missing_of(code: str) -> list[str]:
    """What a kernel says of the cell."""
    given: dict[str, Any] = {}
    exec(MISSING, given)
    missing: list[str] = given["missing"](python_of(code))
    return missing


@pytest.mark.parametrize(
    ("code", "modules"),
    [
        ("import a, b.c as d\nfrom e.f import g\nfrom . import h", {"a", "b", "e"}),
        ("def f():\n    try:\n        import a\n    except ImportError:\n        !pip install a\n", {"a"}),
        ("%matplotlib inline\nimport a\nx = 1\n?x", {"a"}),
        ("%%time\nimport a", {"a"}),
        ("%%bash\nimport a", set()),
        ("import a b", set()),
        ("'import a'", set()),
    ],
)
def test_modules_that_a_cell_imports(code: str, modules: set[str]) -> None:
    assert set(missing_of(code)) == modules
    assert names_at_imports(python_of(code)) >= modules


@pytest.mark.parametrize("code", ["x = 1\ny = 'imported'[0]", "", "%%bash\nimport a", "# imports\nprint(1)"])
def test_without_an_import_statement_hardly_any_name_is_asked_for(code: str) -> None:
    assert names_at_imports(python_of(code)) <= {"y", "imported", "imports"}


def test_names_are_told_as_python_knows_them() -> None:
    # Of the same name another spelling, wide letters, and an accent that stands by itself.
    code = "import \uff4eumpy, caf\u0065\u0301"
    assert set(missing_of(code.replace("\uff4eumpy", "\uff4eo_such_module"))) == {
        "no_such_module",
        "caf\u00e9",
    }
    assert names_at_imports(code) == {"import", "numpy", "caf\u00e9"}


@pytest.mark.parametrize("accents", ["\u0301", "\u0301\u0316", "\ufdfa", "\u0344\u0316 "])
@pytest.mark.parametrize("last", ["", "\u0316"])
@pytest.mark.nightly
def test_names_are_found_in_linear_time(accents: str, last: str) -> None:
    def make(size: int) -> str:
        count = size // (len(accents) + len(last))
        return f"import a{accents * count}{last * count}"

    IN_SECONDS.check(names_at_imports, make)


def test_a_name_that_no_package_has_is_not_normalised(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time of normalising a name grows with the square of its length."""
    lengths: list[int] = []

    def normalize(form: str, name: str) -> str:
        lengths.append(len(name))
        return unicodedata.normalize(form, name)

    monkeypatch.setattr("cellgate.packages.imports.unicodedata", SimpleNamespace(normalize=normalize))
    names = ["a" + "\u0301" * count for count in (1, MOST_NAME - 1, MOST_NAME, 8000)]
    assert names_at_imports(f"import {', '.join(names)}") >= {"import", "\u00e1"}
    assert sorted(lengths) == [2, len("import"), MOST_NAME]


def test_the_distribution_of_a_module() -> None:
    assert [distribution_of(name) for name in ("cv2", "sklearn", "Some_Module")] == [
        "opencv-python-headless",
        "scikit-learn",
        "some-module",
    ]


@pytest.mark.parametrize("module", ["_private", "__main__", "tschüss", "模块"])
def test_no_distribution_has_the_name_of_such_a_module(module: str) -> None:
    assert module in names_at_imports(f"import {module}")
    assert distribution_of(module) is None


def test_no_distribution_has_a_name_that_is_too_long() -> None:
    module = "a" * 200
    assert names_at_imports(f"import {module}, b") == {"import", "b"}
    assert distribution_of(module) is None


def test_a_misspelt_package_is_refused_with_the_allowed_one_that_was_meant() -> None:
    settings = PackageSettings(PackageSettings.allowing(["humanize", "polars"]))
    with pytest.raises(PackagesNotAllowed, match="here: humanise; did you mean humanize"):
        settings.check(["humanise"])
    with pytest.raises(PackagesNotAllowed, match=r"here: requests\. Allowed here"):
        settings.check(["requests"])
