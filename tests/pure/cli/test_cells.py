"""Files as cells: notebooks of several formats, percent scripts, Markdown; and the notebook of a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbformat import v3, v4

from cellgate.cli.run.cells import CellFile, CellKind, SourceCell
from cellgate.cli.run.notebook_files import read_cells, weave
from cellgate.cli.run.notebook_kernel import Choice, choose_kernel, is_python, written_with
from cellgate_kernels.base.errors import InvalidInput
from cellgate_kernels.specs.languages import Language

CODE, MARKDOWN, RAW = CellKind.CODE, CellKind.MARKDOWN, CellKind.RAW


def write(folder: Path, name: str, text: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def read(folder: Path, name: str, text: str | bytes) -> list[tuple[CellKind, str]]:
    return [(cell.kind, cell.source) for cell in read_cells(write(folder, name, text)).cells]


def notebook(*cells: Any, **changes: Any) -> str:
    return json.dumps(
        {"nbformat": 4, "nbformat_minor": 5, "metadata": {"title": "T"}, "cells": list(cells), **changes}
    )


# Notebooks


def test_a_notebook_keeps_its_cells_ids_metadata_and_attachments(tmp_path: Path) -> None:
    picture = {"a.png": {"image/png": "aGk="}}
    text = v4.new_markdown_cell("# Title\n![a](attachment:a.png)", attachments=picture, id="intro")
    code = v4.new_code_cell("1 + 1", metadata={"tags": ["x"]}, id="sum")
    file = read_cells(write(tmp_path, "a.ipynb", notebook(text, code, v4.new_raw_cell("as it is"))))
    assert [cell.kind for cell in file.cells] == [MARKDOWN, CODE, RAW]
    assert [cell.id for cell in file.cells][:2] == ["intro", "sum"]
    assert file.cells[0].attachments == picture
    assert file.cells[1].metadata == {"tags": ["x"]}
    assert file.metadata == {"title": "T"}
    assert file.notices == ()


def test_a_notebook_of_format_4_4_gets_ids(tmp_path: Path) -> None:
    cells = [
        {"cell_type": "code", "source": s, "metadata": {}, "outputs": [], "execution_count": None}
        for s in "ab"
    ]
    file = read_cells(write(tmp_path, "a.ipynb", notebook(*cells, nbformat_minor=4)))
    assert [cell.source for cell in file.cells] == ["a", "b"]
    assert len({cell.id for cell in file.cells}) == 2
    assert all(cell.id for cell in file.cells)


def test_sources_as_lists_of_lines_are_joined(tmp_path: Path) -> None:
    cell = {**v4.new_code_cell(""), "source": ["a = 1\n", "b = 2"]}
    assert read(tmp_path, "a.ipynb", notebook(cell)) == [(CODE, "a = 1\nb = 2")]


def test_repeated_cell_ids_are_made_different(tmp_path: Path) -> None:
    cells = [v4.new_code_cell(source, id="same") for source in "ab"]
    file = read_cells(write(tmp_path, "a.ipynb", notebook(*cells)))
    assert file.cells[0].id == "same"
    assert file.cells[1].id not in {None, "same"}


OLD_HEADING = (
    b'{"nbformat": 3, "nbformat_minor": 0, "metadata": {}, "worksheets": [{"metadata": {}, "cells":'
    b' [{"cell_type": "heading", "level": %b, "source": "a", "metadata": {}}]}]}'
)
"""nbformat makes a heading of it, with as many `#` as its level says."""


def test_a_notebook_of_format_3_is_upgraded(tmp_path: Path) -> None:
    sheet = v3.new_worksheet(
        cells=[v3.new_text_cell("heading", source="Title"), v3.new_code_cell("print(1)")]
    )
    text = json.dumps(v3.new_notebook(worksheets=[sheet]))
    assert read(tmp_path, "old.ipynb", text) == [(MARKDOWN, "# Title"), (CODE, "print(1)")]


def test_an_empty_notebook_has_no_cells(tmp_path: Path) -> None:
    assert read(tmp_path, "a.ipynb", notebook()) == []


def test_tags_say_which_cells_run_and_which_may_fail(tmp_path: Path) -> None:
    skipped = v4.new_code_cell("1", metadata={"tags": ["skip-execution"]})
    failing = v4.new_code_cell("1/0", metadata={"tags": ["raises-exception"]})
    blank = v4.new_code_cell("  \n")
    odd = v4.new_code_cell("1", metadata={"tags": ["x"]})
    file = read_cells(
        write(tmp_path, "a.ipynb", notebook(skipped, failing, blank, odd, v4.new_markdown_cell("t")))
    )
    assert [cell.runs for cell in file.cells] == [False, True, False, True, False]
    assert [cell.may_fail for cell in file.cells] == [False, True, False, False, False]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"{}",
        b'{"nbformat": "4"}',
        b'{"nbformat": 99, "nbformat_minor": 0, "metadata": {}, "cells": []}',
        b'{"nbformat": 4}',
        b'{"nbformat": 4, "nbformat_minor": 5, "metadata": {}}',
        b'{"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": 3}',
        b'{"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": [1]}',
        b'{"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": [{"cell_type": "poem"}]}',
        b'{"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": [{"cell_type": "raw", "source": 3}]}',
        b'{"nbformat": 3, "nbformat_minor": 0, "metadata": {}, "worksheets": [{}]}',
        OLD_HEADING % b"7",
        OLD_HEADING % b"1000000000000",
        OLD_HEADING % b"[1]",
        b"\xff\xfe\x00",
        b"[" * 100_000,
    ],
)
def test_a_file_that_is_no_notebook_is_refused_by_name(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(InvalidInput, match=r"bad\.ipynb"):
        read_cells(write(tmp_path, "bad.ipynb", content))


# Scripts


def test_a_script_without_markers_is_one_cell(tmp_path: Path) -> None:
    assert read(tmp_path, "a.py", "import os\n\nprint(os)\n") == [(CODE, "import os\n\nprint(os)")]


def test_a_script_is_divided_at_its_markers(tmp_path: Path) -> None:
    text = """\
import os

# %%
a = 1

#%%
b = 2
# %% A title [markdown] key="value"
# # Heading
#
# Text with `code`,
#and a line without a space
# %% [md]
\"\"\"
In a string
\"\"\"
# %% [raw]
# left alone
# %%% a cell one level down
c = 3
"""
    assert read(tmp_path, "a.py", text) == [
        (CODE, "import os"),
        (CODE, "a = 1"),
        (CODE, "b = 2"),
        (MARKDOWN, "# Heading\n\nText with `code`,\nand a line without a space"),
        (MARKDOWN, "In a string"),
        (RAW, "left alone"),
        (CODE, "c = 3"),
    ]


def test_empty_cells_of_a_script_are_left_out(tmp_path: Path) -> None:
    assert read(tmp_path, "a.py", "# %%\n\n# %%\n# %%\nx\n") == [(CODE, "x")]
    assert read(tmp_path, "b.py", "") == []


def test_a_marker_inside_a_string_is_text(tmp_path: Path) -> None:
    text = 's = """\n# %%\n"""\n# %%\nt = 1'
    assert read(tmp_path, "a.py", text) == [(CODE, 's = """\n# %%\n"""'), (CODE, "t = 1")]


@pytest.mark.parametrize(
    "line", ["#%%time", "# %%bash", "# %matplotlib inline", "  # %%", "x = 1 # %%", "## %%"]
)
def test_what_only_looks_like_a_marker_is_code(tmp_path: Path, line: str) -> None:
    assert read(tmp_path, "a.py", f"a\n{line}\nb") == [(CODE, f"a\n{line}\nb")]


def test_magics_that_python_can_t_tokenize_do_not_hide_later_markers(tmp_path: Path) -> None:
    text = "# %%\n!echo it's\n# %%\nif x:\n  a\n b\n# %%\n'''\n# %%\nlast"
    assert [source for _, source in read(tmp_path, "a.py", text)] == [
        "!echo it's",
        "if x:\n  a\n b",
        "'''",
        "last",
    ]


def test_the_header_of_jupytext_is_no_code(tmp_path: Path) -> None:
    text = "# ---\n# jupyter:\n#   kernelspec: {}\n# ---\n\n# %%\n1\n"
    assert read(tmp_path, "a.py", text) == [(CODE, "1")]


def test_a_script_in_its_declared_encoding(tmp_path: Path) -> None:
    text = "# -*- coding: latin-1 -*-\ns = 'é'\n"
    assert read(tmp_path, "a.py", text.encode("latin-1")) == [(CODE, text.strip())]
    assert read(tmp_path, "b.py", b"\xef\xbb\xbfs = 1\r\nt = 2\r\n") == [(CODE, "s = 1\nt = 2")]


@pytest.mark.parametrize("content", [b"\xff\xff", b"# coding: nothing\n"])
def test_a_script_that_is_no_text_is_refused_by_name(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(InvalidInput, match=r"bad\.py"):
        read_cells(write(tmp_path, "bad.py", content))


# Markdown


def test_python_blocks_are_cells_and_the_text_between_them_stays(tmp_path: Path) -> None:
    text = """\
# Title

```python
a = 1
```

Then:

~~~~py title="b"
b = '''
~~~
'''
~~~~
The end.
"""
    assert read(tmp_path, "a.md", text) == [
        (MARKDOWN, "# Title"),
        (CODE, "a = 1"),
        (MARKDOWN, "Then:"),
        (CODE, "b = '''\n~~~\n'''"),
        (MARKDOWN, "The end."),
    ]


@pytest.mark.parametrize(
    "info",
    [
        "python",
        "Python",
        "py",
        "python3",
        "ipython",
        "{python}",
        "{.python #id .x}",
        "python {a=1}",
        "python,x",
        " py ",
    ],
)
def test_every_way_to_say_python(tmp_path: Path, info: str) -> None:
    assert read(tmp_path, "a.md", f"```{info}\n1\n```\n") == [(CODE, "1")]


def test_other_blocks_stay_text_and_are_named(tmp_path: Path) -> None:
    text = (
        "```bash\nls\n```\n\n```\nplain\n```\n\n```python\n1\n```\n\n```bash\npwd\n```\n\n    indented = 1\n"
    )
    file = read_cells(write(tmp_path, "a.md", text))
    assert [cell.source for cell in file.cells if cell.runs] == ["1"]
    assert file.notices == (
        "not run, because not marked as Python: bash (line 1, 13)",
        "not run, because not marked as Python: no language (line 5)",
    )
    assert "```bash\nls\n```" in file.cells[0].source
    assert "indented = 1" in file.cells[2].source


def test_other_languages_blocks_are_cells_too_if_they_should(tmp_path: Path) -> None:
    text = "```bash\nls\n```\n\n```python\n1\n```\n\n```ts\n2\n```\n\n```sql\nselect 3\n```\n"
    path = write(tmp_path, "a.md", text)
    mixed = read_cells(path, mixed=True)
    assert [cell.source for cell in mixed.cells if cell.runs] == [
        "%%bash\nls",
        "1",
        "%%script env -u FORCE_COLOR NO_COLOR=1 deno run --quiet --allow-all --ext=ts -\n2",
    ]
    assert mixed.notices == ("not run, because not marked as Python: sql (line 13)",)
    shell = read_cells(path, Language.BASH)
    assert [cell.source for cell in shell.cells if cell.runs] == ["ls"]
    with pytest.raises(InvalidInput, match="only in javascript and typescript"):
        read_cells(path, Language.JAVASCRIPT, mixed=True)


def test_a_block_within_a_longer_fence_is_not_run(tmp_path: Path) -> None:
    assert read(tmp_path, "a.md", "````markdown\n```python\n1\n```\n````\n") == [
        (MARKDOWN, "````markdown\n```python\n1\n```\n````")
    ]


def test_indented_blocks_and_blocks_in_lists_lose_their_indentation(tmp_path: Path) -> None:
    indented = "  ```python\n  if a:\n      b\n  ```\n\n"
    text = f"{indented}1. Do\n\n   ```python\n   c = 1\n   ```\n\n> ```py\n> d = 2\n> ```\n"
    codes = [source for kind, source in read(tmp_path, "a.md", text) if kind is CODE]
    assert codes == ["if a:\n    b", "c = 1", "d = 2"]


def test_a_block_without_end_goes_to_the_end(tmp_path: Path) -> None:
    assert read(tmp_path, "a.md", "text\n```python\n1\n\n2\n") == [(MARKDOWN, "text"), (CODE, "1\n\n2")]


def test_line_separators_that_are_no_newlines_do_not_shift_blocks(tmp_path: Path) -> None:
    text = "a\u2028b\x0cc\r\n\r\n```python\r\n1\r\n```\r\n"
    assert read(tmp_path, "a.md", text) == [(MARKDOWN, "a\u2028b\x0cc"), (CODE, "1")]


def test_unknown_kinds_of_files_and_folders_are_refused(tmp_path: Path) -> None:
    (tmp_path / "folder.md").mkdir()
    for name in ("a.txt", "a", "absent.py", "folder.md"):
        with pytest.raises(InvalidInput, match=name):
            read_cells(tmp_path / name)


# The notebook of a run


def exported(*cells: tuple[str, str]) -> Any:
    """A notebook as the gateway exports it, of (execution, source) pairs, each with its source as output."""
    made = []
    for count, (execution, source) in enumerate(cells, 1):
        output = v4.new_output("stream", text=source)
        cell = v4.new_code_cell(source, execution_count=count, outputs=[output])
        cell.metadata["cellgate"] = {"execution": execution}
        made.append(cell)
    return v4.new_notebook(cells=made, metadata={"cellgate": {"session": "s"}, "title": "exported"})


def test_a_run_s_notebook_reads_like_the_file_with_the_outputs_in_place() -> None:
    source = CellFile(
        (
            SourceCell(MARKDOWN, "# Title", id="intro", attachments={"a.png": {"image/png": "aGk="}}),
            SourceCell(CODE, "a", id="first", metadata={"tags": ["x"]}),
            SourceCell(RAW, "raw"),
            SourceCell(CODE, "b"),
            SourceCell(CODE, "not reached"),
        ),
        metadata={"title": "mine", "authors": []},
    )
    woven = weave(
        source, exported(("e0", "earlier"), ("e1", "a"), ("e2", "b")), [None, "e1", None, "e2", None]
    )
    nbformat.validate(woven)
    assert [cell.source for cell in woven.cells] == ["# Title", "a", "raw", "b", "not reached"]
    assert [cell.get("execution_count") for cell in woven.cells] == [None, 2, None, 3, None]
    assert woven.cells[1].outputs[0].text == "a"
    assert woven.cells[1].metadata == {"tags": ["x"], "cellgate": {"execution": "e1"}}
    assert woven.cells[4].outputs == []
    assert [woven.cells[0].id, woven.cells[1].id] == ["intro", "first"]
    assert woven.cells[0].attachments == {"a.png": {"image/png": "aGk="}}
    assert woven.metadata == {"title": "exported", "authors": [], "cellgate": {"session": "s"}}


def test_a_run_that_the_record_does_not_know_leaves_the_cell_without_outputs() -> None:
    woven = weave(CellFile((SourceCell(CODE, "a"),)), exported(), ["lost"])
    nbformat.validate(woven)
    assert woven.cells[0].outputs == []


# Notebooks that are not quite valid


CODE_CELL: dict[str, Any] = {
    "cell_type": "code",
    "id": "run",
    "metadata": {},
    "source": "print('ran')",
    "outputs": [],
    "execution_count": None,
}
TEXT_CELL: dict[str, Any] = {"cell_type": "markdown", "id": "text", "metadata": {}, "source": "# T"}


def old(output: object) -> dict[str, Any]:
    return {**CODE_CELL, "outputs": [output]}


def without(cell: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in cell.items() if key != name}


@pytest.mark.parametrize(
    "cell",
    [
        old({"output_type": "stream", "name": "stdout", "text": "x", "metadata": []}),
        old({"output_type": "display_data", "data": {"text/plain": "x"}, "metadata": []}),
        old({"output_type": "unknown", "data": {}}),
        old({"output_type": "stream", "text": "x"}),
        old({"output_type": "error", "ename": "E", "evalue": "x"}),
        old(None),
        without(CODE_CELL, "outputs"),
        without(CODE_CELL, "execution_count"),
        without(CODE_CELL, "metadata"),
        {**CODE_CELL, "outputs": None, "execution_count": "1"},
        {**CODE_CELL, "attachments": {}},
        {**CODE_CELL, "id": "a b/é"},
        {**CODE_CELL, "id": 7},
        {**CODE_CELL, "id": "x" * 65},
        {**CODE_CELL, "metadata": None},
        {**CODE_CELL, "language": "python"},
        {**CODE_CELL, "source": ["print(", "'ran')"]},
    ],
)
def test_a_code_cell_that_is_not_quite_valid_runs_in_silence(cell: dict[str, Any], tmp_path: Path) -> None:
    file = read_cells(write(tmp_path, "a.ipynb", notebook(cell)))
    assert [(each.kind, each.source) for each in file.cells] == [(CODE, "print('ran')")]
    assert file.notices == ()
    nbformat.validate(weave(file, v4.new_notebook(), [None]))


@pytest.mark.parametrize(
    ("cell", "named"),
    [
        ({**TEXT_CELL, "outputs": [], "execution_count": None}, None),
        ({**TEXT_CELL, "source": None}, None),
        ({**TEXT_CELL, "attachments": None}, None),
        ({**TEXT_CELL, "attachments": {"a.png": "x"}}, None),
        ({**TEXT_CELL, "attachments": {"a.png": {"image/png": 5}}}, "attachments of cell 1"),
        ({**TEXT_CELL, "metadata": {"tags": "x", "kept": 1}}, "metadata.tags of cell 1"),
        ({**TEXT_CELL, "metadata": {"tags": ["a,b"], "name": 5}}, "metadata.tags of cell 1, metadata.name"),
        ({**CODE_CELL, "id": "b", "metadata": {"collapsed": "yes"}}, "metadata.collapsed of cell 1"),
        ({"cell_type": "raw", "source": "x", "metadata": {"format": 5}}, "metadata.format of cell 1"),
    ],
)
def test_what_is_left_out_of_a_cell_is_named(cell: dict[str, Any], named: str | None, tmp_path: Path) -> None:
    file = read_cells(write(tmp_path, "a.ipynb", notebook(CODE_CELL, cell)))
    assert file.cells[0].source == "print('ran')"
    assert (file.notices == ()) == (named is None)
    assert named is None or named in file.notices[0]
    woven = weave(file, v4.new_notebook(), [None, None])
    nbformat.validate(woven)
    assert woven.cells[1].metadata.get("kept") == cell["metadata"].get("kept")


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"metadata": {"kernelspec": {"display_name": "Python 3"}}}, "metadata.kernelspec"),
        ({"metadata": {"language_info": {"version": "3"}}}, "metadata.language_info"),
        ({"metadata": {"title": 5}}, "metadata.title"),
        ({"metadata": {"authors": "me", "title": None}}, "metadata.authors, metadata.title"),
        ({"metadata": None}, None),
        ({"metadata": []}, None),
        ({"nbformat_minor": None}, None),
        ({"nbformat_minor": "5"}, None),
        ({"nbformat_minor": -1}, None),
        ({"more": 1}, None),
    ],
)
def test_a_notebook_that_is_not_quite_valid_runs(
    changes: dict[str, Any], named: str | None, tmp_path: Path
) -> None:
    file = read_cells(write(tmp_path, "a.ipynb", notebook(CODE_CELL, **changes)))
    assert [each.source for each in file.cells] == ["print('ran')"]
    assert file.notices == (() if named is None else (f"not quite a valid notebook, so left out: {named}",))
    nbformat.validate(weave(file, v4.new_notebook(), [None]))


def test_a_notebook_without_its_minor_version_or_metadata_runs(tmp_path: Path) -> None:
    file = read_cells(write(tmp_path, "a.ipynb", json.dumps({"nbformat": 4, "cells": [CODE_CELL]})))
    assert [each.source for each in file.cells] == ["print('ran')"]


@pytest.mark.parametrize(
    "cell",
    [
        None,
        {},
        {"cell_type": "heading", "source": "x", "metadata": {}},
        {**CODE_CELL, "source": 5},
        {**CODE_CELL, "source": ["a", None]},
    ],
)
def test_what_is_no_cell_is_refused(cell: object, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"a\.ipynb is not a valid notebook"):
        read_cells(write(tmp_path, "a.ipynb", notebook(CODE_CELL, cell)))


def test_a_long_list_of_what_is_left_out_is_cut(tmp_path: Path) -> None:
    cells = [{**CODE_CELL, "id": f"c{number}", "metadata": {"tags": 5}} for number in range(9)]
    (notice,) = read_cells(write(tmp_path, "a.ipynb", notebook(*cells))).notices
    assert notice.endswith("metadata.tags of cell 4 and 4 more")


# Kernels of notebooks


OFFERED = {"python3": "python", "bash": "bash", "deno": "typescript", "my-r": "R"}


@pytest.mark.parametrize(
    ("metadata", "choice"),
    [
        ({"kernelspec": {"name": "bash", "language": "bash"}}, Choice(kernel="bash")),
        ({"kernelspec": {"name": "bash"}}, Choice(kernel="bash")),
        ({"kernelspec": {"name": "deno", "language": "typescript"}}, Choice(kernel="deno")),
        ({"kernelspec": {"name": "tslab", "language": "typescript"}}, Choice(language="typescript")),
        ({"kernelspec": {"name": "jslab", "language": "javascript"}}, Choice(language="javascript")),
        ({"kernelspec": {"name": "sh"}}, Choice(language="bash")),
        ({"language_info": {"name": "bash"}}, Choice(language="bash")),
        ({"kernelspec": {"name": "ir", "language": "R"}}, Choice(kernel="my-r")),
        ({"kernelspec": {"name": "bash", "language": "R"}}, Choice(kernel="my-r")),
    ],
)
def test_a_notebook_gets_a_kernel_of_its_language(metadata: dict[str, Any], choice: Choice) -> None:
    written = written_with(metadata)
    assert not is_python(written)
    assert choose_kernel(written, OFFERED) == choice


@pytest.mark.parametrize(
    "metadata",
    [
        {},
        {"kernelspec": None, "language_info": []},
        {"kernelspec": {"name": "my-env", "language": "python"}},
        {"kernelspec": {"name": "python3"}},
        {"kernelspec": {"name": "x"}, "language_info": {"name": "python"}},
        {"kernelspec": {"name": 5, "language": "Python"}},
    ],
)
def test_a_notebook_of_python_is_left_to_the_gateway(metadata: dict[str, Any]) -> None:
    assert is_python(written_with(metadata))


def test_a_language_that_is_not_here_is_refused_by_the_name_of_the_kernelspec() -> None:
    written = written_with({"kernelspec": {"name": "ir", "language": "R"}})
    with pytest.raises(InvalidInput, match=r"for the kernelspec 'ir' of R, which is not here.*deno \(typesc"):
        choose_kernel(written, {name: language for name, language in OFFERED.items() if name != "my-r"})
    nameless = written_with({"kernelspec": {"name": "conda-root-py"}})
    assert "run as Python" in choose_kernel(nameless, OFFERED).notice


# Magics that are comments


JUPYTEXT = "# ---\n# jupyter:\n#   jupytext:\n#     formats: ipynb,py:percent\n{}# ---\n"


def test_magics_that_jupytext_made_comments_are_magics(tmp_path: Path) -> None:
    text = JUPYTEXT.format("") + (
        "# %%\n# %matplotlib inline\nx = 1  # %kept\nif x:\n    # !echo hi\n    # %d is a format\n"
        "# ! not one\ntext = '''\n# %inside\n'''\n"
        '# %% language="bash"\n# echo "a"\n#\n# ls\n'
        "# %%\n# %%time\nsum(range(9))\n"
    )
    assert read(tmp_path, "a.py", text) == [
        (
            CODE,
            (
                "%matplotlib inline\nx = 1  # %kept\nif x:\n    !echo hi\n    %d is a format\n"
                "# ! not one\ntext = '''\n# %inside\n'''"
            ),
        ),
        (CODE, '%%bash\necho "a"\n\nls'),
        (CODE, "%%time\nsum(range(9))"),
    ]


def test_comments_of_other_scripts_stay_comments(tmp_path: Path) -> None:
    plain = "# %%\n# %matplotlib inline\n# !ls\n#!%matplotlib widget\n#!/usr/bin/env python\n"
    kept = "# %matplotlib inline\n# !ls\n%matplotlib widget\n#!/usr/bin/env python"
    assert read(tmp_path, "a.py", plain) == [(CODE, kept)]
    header = JUPYTEXT.format("#     comment_magics: false\n")
    assert read(tmp_path, "b.py", header + "# %%\n# %who\n1") == [(CODE, "# %who\n1")]
