"""The state of widgets in the notebook of a real gateway, as nbclient has it.

The cells speak the widgets' protocol by the package that ipykernel brings, as ipywidgets does.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import nbformat

from cellgate.record.export.widgets import STATE
from cellgate.record.verify.notebooks import check_bundle
from tests.core.sessions.test_widgets import MODEL
from tests.gateway.test_notebooks import run_with_nbclient
from tests.support.server import GatewayProcess

CELLS = (
    f"""from comm import create_comm
def widget(name, **state):
    state = {{**{MODEL!r}, '_model_module_version': '2.0.0', **state}}
    data = {{'state': state, 'buffer_paths': []}}
    return create_comm(target_name='jupyter.widget', comm_id=name, data=data)
slider, picture, gone = widget('slider', value=1), widget('picture', value=None), widget('gone')
other = create_comm(target_name='other', comm_id='other', data={{'state': {MODEL!r}}})""",
    """slider.send({'method': 'update', 'state': {'value': 7}, 'buffer_paths': []})
slider.send({'method': 'custom', 'content': {'event': 'click'}})
other.send({'state': {'value': 1}})
update = {'method': 'update', 'state': {}, 'buffer_paths': [['value'], ['deep', 0]]}
picture.send(update, buffers=[b'first', b'\\x00\\xff'])
picture.send({**update, 'buffer_paths': [['value']]}, buffers=[b'second'])
gone.close()
print('shown')""",
)


OUTPUT = {
    "_model_name": "OutputModel",
    "_model_module": "@jupyter-widgets/output",
    "_model_module_version": "1.0.0",
}
CAPTURING = (
    f"""import sys
from comm import create_comm
from IPython.display import clear_output, display
class Output:
    def __init__(self, name):
        state = {{**{OUTPUT!r}, 'msg_id': '', 'outputs': []}}
        data = {{'state': state, 'buffer_paths': []}}
        self.comm = create_comm(target_name='jupyter.widget', comm_id=name, data=data)
    def update(self, **state):
        sys.stdout.flush()
        self.comm.send({{'method': 'update', 'state': state, 'buffer_paths': []}})
    def __enter__(self):
        self.update(msg_id=get_ipython().kernel.get_parent()['header']['msg_id'])
    def __exit__(self, kind, error, trace):
        if kind is not None:
            get_ipython().showtraceback((kind, error, trace), tb_offset=0)
        self.update(msg_id='')
        return True
one, two, three = map(Output, ['one', 'two', 'three'])
print('before')
with one:
    print('in one')
    print('and more')
    display('shown in one')
print('after')""",
    """with one:
    1 / 0
with two:
    print('in two')
    with three:
        print('in three')
    print('in two again')
'result'""",
    """with two:
    clear_output()
with three:
    clear_output(wait=True)
    print('instead')
print('to be cleared')
clear_output()
print('last')""",
)


def test_what_an_output_widget_shows_is_no_output_of_its_cell(
    gateway: GatewayProcess, session: str, tmp_path: Path
) -> None:
    theirs = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code) for code in CAPTURING])
    asyncio.run(run_with_nbclient(theirs, tmp_path, {}))
    results = [gateway.execute(session, code) for code in CAPTURING]
    assert [result["status"] for result in results] == ["ok"] * 3
    expected = [json.loads(json.dumps(cell.outputs)) for cell in theirs.cells]
    assert [result["outputs"] for result in results] == expected
    assert [result["text"] for result in results] == ["before\nafter\n", "'result'", "last\n"]
    assert [gateway.result(session, result["execution"]) for result in results] == results
    notebook = gateway.get(f"/v1/sessions/{session}/notebook").json()
    nbformat.validate(notebook)
    exported = nbformat.reads(json.dumps(notebook), as_version=4)
    assert [cell["outputs"] for cell in json.loads(json.dumps(exported))["cells"]] == expected
    ours, known = (
        {name: model["state"]["outputs"] for name, model in metadata["widgets"][STATE]["state"].items()}
        for metadata in (notebook["metadata"], json.loads(json.dumps(theirs.metadata)))
    )
    assert ours == known
    assert [[output["output_type"] for output in ours[name]] for name in ("one", "two", "three")] == [
        ["stream", "display_data", "error"],
        [],
        ["stream"],
    ]
    assert gateway.get(f"/v1/sessions/{session}/audit/verify").json()["valid"]
    bundle = tmp_path / "bundle.zip"
    bundle.write_bytes(gateway.get(f"/v1/sessions/{session}/bundle").body)
    assert check_bundle(bundle).problem is None


def test_the_notebook_has_the_state_that_nbclient_has(
    gateway: GatewayProcess, session: str, tmp_path: Path
) -> None:
    for code in CELLS:
        result = gateway.execute(session, code)
        assert result["status"] == "ok", result
    assert [output["output_type"] for output in result["outputs"]] == ["stream"]
    answer = gateway.get(f"/v1/sessions/{session}/notebook")
    notebook = answer.json()
    nbformat.validate(notebook)
    theirs = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code) for code in CELLS])
    asyncio.run(run_with_nbclient(theirs, tmp_path, {}))
    state = json.loads(json.dumps(theirs.metadata.widgets))[STATE]["state"]
    # nbclient takes the state of every target for a widget's.
    assert state.pop("other")["state"]["value"] == 1
    assert notebook["metadata"]["widgets"] == {
        STATE: {"state": state, "version_major": 2, "version_minor": 0}
    }
    assert state["slider"]["state"]["value"] == 7
    assert len(state["picture"]["buffers"]) == 2
    without = gateway.get(f"/v1/sessions/{session}/notebook?outputs=false").json()
    assert "widgets" not in without["metadata"]
    assert gateway.get(f"/v1/sessions/{session}/audit/verify").json()["valid"]
    bundle = tmp_path / "bundle.zip"
    bundle.write_bytes(gateway.get(f"/v1/sessions/{session}/bundle").body)
    assert check_bundle(bundle).problem is None
    told = [event["type"] for event in gateway.recorded(session)]
    assert (told.count("comm_open"), told.count("comm_msg"), told.count("comm_close")) == (3, 4, 1)
