"""The rules of ``tests/house.py`` find what they are for, and nothing else."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.house import problems, undocumented

TOLD = [
    'raise ValueError(f"no: {error}")',
    'raise ValueError("no: " + str(error))',
    'raise ValueError(f"no: {error.strerror or error}")',
    'raise ValueError(f"no: {error!r}")',
    'logger.warning("no: %s", error)',
    'logger.info("no: %s", error or "late")',
]
WELL_TOLD = [
    'raise ValueError(f"no: {in_words(error)}")',
    'logger.warning("no: %s", in_brief(error))',
    "raise ValueError() from error",
    "print(error.errno)",
]


def found(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caught: str, statement: str, place: str
) -> list[str]:
    path = Path(place)
    monkeypatch.chdir(folder)
    path.parent.mkdir(parents=True)
    path.write_text(f'"""."""\ntry:\n    pass\nexcept {caught} as error:\n    {statement}\n')
    return list(problems(path))


@pytest.mark.parametrize(
    "caught", ["OSError", "(ValueError, PermissionError)", "Exception", "(*UNREADABLE,)"]
)
@pytest.mark.parametrize("statement", TOLD)
def test_an_error_of_the_system_told_with_its_number_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caught: str, statement: str
) -> None:
    assert set(found(tmp_path, monkeypatch, caught, statement, "gateway/x.py")) == {
        (
            "gateway/x.py:5: an error of the system, told with its number: "
            "use cellgate_kernels.base.errors.in_words"
        )
    }


def test_one_that_a_function_is_given_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = Path("gateway/y.py")
    monkeypatch.chdir(tmp_path)
    path.parent.mkdir()
    path.write_text('"""."""\ndef why(error: OSError) -> str:\n    return f"no: {error}"\n')
    assert len([*problems(path)]) == 1


@pytest.mark.parametrize("statement", WELL_TOLD)
def test_one_told_in_words_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, statement: str) -> None:
    assert not found(tmp_path, monkeypatch, "OSError", statement, "gateway/x.py")


def test_other_errors_are_told_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not found(tmp_path, monkeypatch, "ValueError", TOLD[0], "gateway/x.py")


@pytest.mark.parametrize(("statement", "problems"), [('f"{error.strerror}"', 0), ('f"{error}"', 1)])
def test_programs_inside_kernels_tell_the_systems_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, statement: str, problems: int
) -> None:
    place = "kernels/cellgate_kernels/inside/x.py"
    assert len(found(tmp_path, monkeypatch, "OSError", statement, place)) == problems


BASE = """
class Base:
    def said(self):
        \"\"\"Say it.\"\"\"
"""


@pytest.mark.parametrize(
    ("text", "missing"),
    [
        ("class A:\n    def f(self): ...", 1),
        ("class A:\n    def _f(self): ...", 0),
        (f"{BASE}\nclass A(Base[int]):\n    def said(self): ...\n    def f(self): ...", 1),
        ("class A:\n    @operation('f')\n    def get(self): ...", 0),
    ],
)
def test_a_method_is_described_by_itself_or_by_its_base(text: str, missing: int) -> None:
    assert len(list(undocumented({Path("a.py"): ast.parse(text)}))) == missing
