"""Lists of packages that operators give, and names of environments."""

from __future__ import annotations

import pytest

from cellgate_kernels.base.errors import InvalidInput
from cellgate_kernels.specs.named_environment import (
    METADATA,
    NamedEnvironment,
    check_name,
    named_environment,
    read_named,
)
from cellgate_kernels.specs.requirement_list import MOST_PACKAGES, read_list

FIRST, SECOND = "a" * 64, "b" * 64


def test_a_list_of_names_is_put_in_order() -> None:
    text = "# ours\n\nnumpy>=2  # arrays\r\nHumanize\nlib[extra]==1.*; python_version > '3'\n"
    found = read_list(text, "it")
    assert found.text() == 'Humanize\nlib[extra]==1.*; python_version > "3"\nnumpy>=2\n'
    assert not found.is_lock
    assert len(found) == 3


def test_a_lock_has_the_same_text_however_it_is_written() -> None:
    one = f"pear==1.0 --hash=sha256:{SECOND} --hash=sha256:{FIRST}\napple==2 \\\n  --hash=sha256:{FIRST}\n"
    two = (
        f"apple==2 \\\n    --hash=sha256:{FIRST}\n    # via pear\n"
        f"pear==1.0 \\\n    --hash=sha256:{FIRST} \\\n    --hash=sha256:{SECOND}\n"
    )
    assert read_list(one, "it").is_lock
    assert read_list(one, "it").text() == read_list(two, "it").text()
    assert read_list(read_list(two, "it").text(), "it") == read_list(two, "it")
    assert read_list(one, "it").text(hashes=False) == "apple==2\npear==1.0\n"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("numpy\n-r other.txt", r"it, line 2: a list has only names of packages, not '-r other\.txt'"),
        ("--index-url https://user:password@example.org/", "it, line 1: a list has only names"),
        ("-e .", "line 1: a list has only names"),
        ("./here", "line 1: './here' does not name a package of an index"),
        ("numpy\n\nlib @ https://example.org/lib.whl", "line 3: lib is to come from an address"),
        ("git+https://example.org/x", "does not name a package"),
        ("numpy==", "does not name a package"),
        ("a\\\nb\n", "line 1: 'a b' does not name a package"),
        (f"numpy==1 --hash=sha256:{FIRST}\npandas==2", "if one package has a hash, all need one"),
        (f"numpy>=1 --hash=sha256:{FIRST}", "a version with ==: numpy has not"),
        ("numpy==1 --hash=md5:0123", "a hash of numpy is not SHA-256"),
        ("\n".join(f"p{number}" for number in range(MOST_PACKAGES + 1)), "there are more than 2,000"),
    ],
)
def test_what_is_no_list_is_refused_with_its_line(text: str, told: str) -> None:
    with pytest.raises(InvalidInput, match=told):
        read_list(text, "it")


@pytest.mark.parametrize("name", ["geo", "a", "0", "geo-2.1_x", "a" * 40])
def test_names_of_environments(name: str) -> None:
    assert check_name(name) == name


@pytest.mark.parametrize("name", ["", "Geo", "../geo", ".geo", "-geo", "geo/1", "a" * 41, "a\n", "é", "a b"])
def test_names_that_no_environment_can_have(name: str) -> None:
    with pytest.raises(InvalidInput, match="can't be the name of an environment, which has 1 to 40 of"):
        check_name(name)


@pytest.mark.parametrize("name", ["python3", "python", "bash", "deno", "standard", "minimal", "own", "js"])
def test_names_that_are_taken(name: str) -> None:
    with pytest.raises(InvalidInput, match="it is one of Cellgate's own"):
        check_name(name)


def test_a_kernelspec_says_which_environment_it_is() -> None:
    named = NamedEnvironment("geo", FIRST)
    told = {"name": "geo", "digest": FIRST}
    assert named_environment({METADATA: told}) == read_named(told) == named
    assert named_environment({}) is None
    assert str(named) == "geo (aaaaaaaaaaaa)"
    for damaged in (
        None,
        "geo",
        {"name": "geo"},
        {"name": "../geo", "digest": FIRST},
        {**told, "digest": "a"},
    ):
        assert read_named(damaged) is None
        with pytest.raises(ValueError, match="without a name and a digest"):
            named_environment({METADATA: damaged})
