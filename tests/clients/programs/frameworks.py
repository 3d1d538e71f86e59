"""Run by the clients' interpreter: frameworks of agents with Cellgate's classes, and the docs' examples.

Arguments as in server.py, and which framework. The models are scripts. Prints one JSON object with what
happened.
"""

import asyncio
import json
import os
import runpy
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
sys.path[:0] = [str(ROOT / "gateway"), str(ROOT / "kernels")]
URL, TOKEN, FOLDER, WHICH = sys.argv[1:]
PLOT = "import matplotlib.pyplot as plt; plt.plot([1, 2]); plt.show()"


def example(name):
    """What is asked of the example's agent."""
    return runpy.run_path(str(ROOT / "docs" / "examples" / name))["ask"]


def with_smolagents():
    from smolagents import CodeAgent, tool
    from smolagents.models import ChatMessage, Model
    from smolagents.utils import AgentError

    from cellgate import Gateway, PackagesNotAllowed
    from cellgate.integrations.smolagents import CellgateExecutor

    gateway = Gateway(URL, TOKEN)

    class Scripted(Model):
        """A model that writes these cells, one at each step."""

        def __init__(self, *cells):
            super().__init__()
            self.cells = list(cells)

        def generate(self, messages, **options):
            return ChatMessage(
                role="assistant", content=f"Thought: so.\n<code>\n{self.cells.pop(0)}\n</code>"
            )

    @tool
    def double(number: int) -> int:
        """Double a number.

        Args:
            number: What is doubled.
        """
        return 2 * number

    found = {
        "example": example("smolagents_agent.py")(
            "?", Scripted("x = 6\nprint(x)", "final_answer(x * 7)"), gateway
        )
    }
    executor = CellgateExecutor(gateway.session(), additional_imports=["numpy"])
    with CodeAgent(
        tools=[double],
        model=Scripted("1 / 0", "final_answer([double(given), 'a' * 300_000])"),
        executor=executor,
        verbosity_level=0,
    ) as agent:
        number, text = agent.run("?", additional_args={"given": 4})
        found |= {
            "tool": number,
            "long": len(text),
            "error": "ZeroDivisionError" in str(agent.memory.steps[-2].error),
        }
        figure = "import matplotlib.pyplot as plt; figure = plt.figure(); plt.plot([1, 2]); figure"
        found["picture"] = executor.run_code_raise_errors(figure).output.format
        found["value"] = executor.run_code_raise_errors("print('said'); [1, 2]").output
        found["logs"] = executor.run_code_raise_errors("print('said')").logs
        try:
            executor.run_code_raise_errors("import os; os._exit(3)")
        except AgentError as error:
            found["died"] = "died" in str(error)
    executor.cleanup()
    try:
        CellgateExecutor(gateway.session(), additional_imports=["numpy", "no-such-package"])
    except PackagesNotAllowed:
        found["refused"] = True
    return found


def with_ag2_coding():
    from autogen import ConversableAgent
    from autogen.coding import CodeBlock, CodeExecutor

    from cellgate.integrations.ag2_coding import Ag2CodingExecutor

    def blocks(*pairs):
        return [CodeBlock(code=code, language=language) for language, code in pairs]

    work, elsewhere = Path(FOLDER, "coding"), Path(FOLDER, "elsewhere")
    work.mkdir()
    elsewhere.mkdir()
    (work / "given.csv").write_text("n\n41\n")
    (work / "linked").symlink_to(elsewhere)
    with Ag2CodingExecutor(URL, TOKEN, work_dir=work) as executor:
        found = {"protocol": isinstance(executor, CodeExecutor)}
        agent = ConversableAgent(
            "runs", llm_config=False, human_input_mode="NEVER", code_execution_config={"executor": executor}
        )
        code = "import pandas\nx = int(pandas.read_csv('given.csv').n[0]) + 1\nprint(x)"
        found["agent"] = agent.generate_reply([{"role": "user", "content": f"```python\n{code}\n```"}])
        run = executor.execute_code_blocks
        writes = "print(x)\n_ = open('made.txt', 'w').write('it')"
        done = run(blocks(("python", writes), ("sh", "exit 3")))
        found["made"] = [
            done.exit_code,
            done.output[:3],
            done.output_files == [str(work.resolve() / "made.txt")],
        ]
        found["text"] = (work / "made.txt").read_text()
        (work / "given.csv").write_text("n\n99\n")
        code = "print(open('given.csv').read().split())\nimport os\nos.mkdir('linked'); open('linked/a', 'w')"
        done = run(blocks(("python", f"{code}.close()")))
        found["again"] = [done.output, done.output_files, [*elsewhere.iterdir()]]
        executor.restart()
        found["restarted"] = run(blocks(("python", "print('x' in globals())"))).output
        found["unknown"] = run(blocks(("cobol", "x"))).exit_code
    with Ag2CodingExecutor(URL, TOKEN, work_dir=work, fresh=True, timeout=20) as executor:
        run = executor.execute_code_blocks
        done = run(
            blocks(
                ("python", "# filename: first.py\nx = 1\nprint(__name__, __file__)"),
                ("python", "import first\nprint('x' in globals())"),
                ("javascript", "console.log(6 * 7)"),
                ("bash", "exit 4"),
                ("python", "print('not reached')"),
            )
        )
        names = sorted(Path(each).name for each in done.output_files)
        found["fresh"] = [done.exit_code, done.output.split(), names]
        found["alone"] = run(blocks(("cobol", "x"))).exit_code
    with Ag2CodingExecutor(URL, TOKEN, fresh=True, timeout=1) as executor:
        done = executor.execute_code_blocks(blocks(("python", "print(1, flush=True)\nwhile True: pass")))
        found["slow"] = [done.exit_code, done.output.split("\n")[0]]
    return found


def with_autogen():
    from autogen_core import CancellationToken
    from autogen_core.code_executor import CodeBlock, CodeExecutor
    from autogen_ext.models.replay import ReplayChatCompletionClient

    from cellgate.integrations.autogen import CellgateCodeExecutor

    def blocks(*pairs):
        return [CodeBlock(code=code, language=language) for language, code in pairs]

    async def use():
        model = ReplayChatCompletionClient(["```python\nprint(6 * 7)\n```", "It is 42."])
        found = {
            "example": await example("autogen_agent.py")("?", model, CellgateCodeExecutor(URL, TOKEN)),
            "shown": "42" in str(model.create_calls[-1]),
        }
        async with CellgateCodeExecutor(URL, TOKEN, output_dir=FOLDER) as executor:
            run = executor.execute_code_blocks
            token = CancellationToken()
            done = await run(
                blocks(("python", "x = 6"), ("python", "print(x * 7)"), ("sh", "echo $((1 + 1))")), token
            )
            found["blocks"] = [done.exit_code, done.output.split()]
            done = await run(blocks(("sh", "exit 3"), ("python", "print('not reached')")), token)
            found["failed"] = [done.exit_code, "not reached" in done.output]
            done = await run(blocks(("cobol", "x")), token)
            found["unknown"] = [done.exit_code, "cobol" in done.output]
            done = await run(blocks(("python", f"{PLOT}\n_ = open('made.txt', 'w').write('it')")), token)
            found["files"] = [file.read_bytes()[:4].decode(errors="replace") for file in done.output_files]
            done = await run(
                blocks(("python", "open('gone', 'w').close()"), ("sh", "rm gone; echo 1 > there")), token
            )
            found["gone"] = [file.name for file in done.output_files]
            endless = CancellationToken()
            running = asyncio.create_task(
                run(blocks(("python", "print('on', flush=True)\nwhile True: pass")), endless)
            )
            async for event in executor.session.events():
                if getattr(event, "text", "") == "on\n":
                    break
            endless.cancel()
            found["cancelled"] = isinstance(
                (await asyncio.gather(running, return_exceptions=True))[0], asyncio.CancelledError
            )
            done = await run(blocks(("python", "print(x)")), token)
            found["after"] = done.output
            await executor.restart()
            done = await run(blocks(("python", "print('x' in globals())")), token)
            found["restarted"] = done.output
            config = executor.dump_component()
        os.environ["CELLGATE_TOKEN"] = TOKEN
        found["stored"] = "TOKEN" not in config.model_dump_json() and TOKEN not in config.model_dump_json()
        async with CodeExecutor.load_component(config) as executor:
            done = await executor.execute_code_blocks(blocks(("python", "print(1)")), CancellationToken())
            found["loaded"] = done.output
        return found

    return asyncio.run(use())


def with_langchain():
    from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
    from langchain_core.messages import AIMessage
    from langchain_core.utils.function_calling import convert_to_openai_tool

    from cellgate import Gateway
    from cellgate.integrations.langchain import CellgateToolkit

    gateway = Gateway(URL, TOKEN)

    class Scripted(GenericFakeChatModel):
        def bind_tools(self, tools, **options):
            return self

    def call(name, **arguments):
        return {"name": name, "args": arguments, "id": "a", "type": "tool_call"}

    calls = [AIMessage("", tool_calls=[call("run_code", code="6 * 7")]), AIMessage("It is 42.")]
    found = {
        "example": asyncio.run(example("langchain_agent.py")("?", Scripted(messages=iter(calls)), gateway))
    }
    with CellgateToolkit(
        gateway.session(checkpoint="auto"), ["run_code", "undo_last_cell", "list_files"]
    ) as toolkit:
        run, undo, files = toolkit.tools
        found["told"] = convert_to_openai_tool(run)["function"]["parameters"]["required"]
        found["blocking"] = [run.invoke({"code": "x = 1; x"}), run.invoke({"code": "x = 2; x"})]
        found["undone"] = undo.invoke({})
        found["value"] = run.invoke(call("run_code", code="x")).content
        found["files"] = files.invoke(call("list_files")).content
        picture = run.invoke(call("run_code", code=PLOT)).content[1]
        found["picture"] = [picture["type"], picture["mime_type"]]
        refused = run.invoke(call("run_code", code="x", branch="another"))
        found["refused"] = [refused.status, refused.content[:11]]
    return found


def with_pydantic_ai():
    from pydantic_ai import Agent, BinaryContent
    from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart, ToolReturnPart
    from pydantic_ai.models.function import FunctionModel

    from cellgate import Gateway
    from cellgate.integrations.pydantic_ai import CellgateToolset

    gateway = Gateway(URL, TOKEN)

    def scripted(*turns):
        """A model that makes these calls, those of a turn at once, and then answers; and what it was told."""
        left, told = list(turns), []

        def reply(messages, info):
            told.append((messages, info))
            if not left:
                return ModelResponse([TextPart("It is 42.")])
            return ModelResponse([ToolCallPart(name, arguments) for name, arguments in left.pop(0)])

        return FunctionModel(reply), told

    def returned(told):
        parts = [part for message in told[-1][0] for part in message.parts]
        return [part for part in parts if isinstance(part, ToolReturnPart)]

    async def use():
        model, told = scripted([("run_code", {"code": "6 * 7"})])
        found = {"example": await example("pydantic_ai_agent.py")("?", model, gateway)}
        [tool] = [each for each in told[0][1].function_tools if each.name == "run_code"]
        found |= {"told": tool.parameters_json_schema["required"], "shown": returned(told)[0].content}
        async with gateway.session(checkpoint="auto") as session:
            at_once = [
                ("run_code", {"code": f"import time; time.sleep({wait}); x = {wait}; x"}) for wait in (0.2, 0)
            ]
            model, told = scripted(at_once, [("undo_last_cell", {})], [("run_code", {"code": "x"})])
            agent = Agent(model, toolsets=[CellgateToolset(session)])
            await agent.run("?")
            found["in order"] = [part.content for part in returned(told)]
            model, told = scripted(
                [("run_code", {"code": PLOT})],
                [("run_code", {"code": "x", "branch": "another"})],
                [("run_code", {"code": "x"})],
            )
            with agent.override(model=model):
                await agent.run("?")
            picture, refused, kept = returned(told)
            [content] = [part for part in picture.content if isinstance(part, BinaryContent)]
            found["picture"] = [content.media_type, content.data[1:4].decode()]
            found["refused"] = [refused.outcome, refused.content[:11]]
            found["kept"] = kept.content
        return found

    return asyncio.run(use())


def with_agent_framework():
    from agent_framework import Agent, BaseChatClient, ChatResponse, Content, FunctionInvocationLayer, Message

    from cellgate import Gateway
    from cellgate.integrations.agent_framework import AgentFrameworkCodeActProvider

    gateway = Gateway(URL, TOKEN)

    class Scripted(FunctionInvocationLayer, BaseChatClient):
        """A model that makes these calls, those of a turn at once, and then answers; and what it was told."""

        def __init__(self, *turns):
            super().__init__()
            self.left, self.told, self.options = list(turns), [], {}

        def _inner_get_response(self, *, messages, stream, options, **_):
            async def reply():
                self.told, self.options = messages, options
                if not self.left:
                    return ChatResponse(messages=[Message("assistant", ["It is 42."])])
                calls = [
                    Content.from_function_call(f"{len(self.left)}-{number}", name, arguments=arguments)
                    for number, (name, arguments) in enumerate(self.left.pop(0))
                ]
                return ChatResponse(messages=[Message("assistant", calls)])

            return reply()

        def returned(self):
            contents = [content for message in self.told for content in message.contents]
            return [content for content in contents if content.type == "function_result"]

    async def use():
        client = Scripted([("run_code", {"code": "6 * 7"})])
        found = {"example": await example("agent_framework_agent.py")("?", client, gateway)}
        [tool] = [each for each in client.options["tools"] if each.name == "run_code"]
        found |= {"told": tool.parameters()["required"], "shown": client.returned()[0].result}
        found["instructed"] = "Act by running code" in str(client.options.get("instructions"))
        async with gateway.session(checkpoint="auto") as session:
            at_once = [
                ("run_code", {"code": f"import time; time.sleep({wait}); x = {wait}; x"}) for wait in (0.2, 0)
            ]
            client = Scripted(at_once, [("undo_last_cell", {})], [("run_code", {"code": "x"})])
            provider = AgentFrameworkCodeActProvider(session)
            await Agent(client=client, context_providers=[provider]).run("?")
            found["in order"] = [each.result for each in client.returned()]
            client = Scripted(
                [("run_code", {"code": PLOT})],
                [("run_code", {"code": "x", "branch": "another"})],
                [("run_code", {"code": "x"})],
            )
            await Agent(client=client, context_providers=[provider]).run("?")
            picture, refused, kept = client.returned()
            [content] = [item for item in picture.items if item.type == "data"]
            found["picture"] = content.media_type
            found["refused"] = refused.result[:11]
            found["kept"] = kept.result
            client = Scripted()
            few = AgentFrameworkCodeActProvider(session, ["list_files"])
            await Agent(client=client, context_providers=[few]).run("?")
            found["few"] = [each.name for each in client.options["tools"]]
        return found

    return asyncio.run(use())


def with_llama_index():
    from llama_index.core.base.llms.types import ImageBlock, ToolCallBlock
    from llama_index.core.llms import ChatMessage
    from llama_index.core.llms.mock import MockFunctionCallingLLM

    from cellgate import Gateway
    from cellgate.integrations.llama_index import CellgateToolkit

    gateway = Gateway(URL, TOKEN)

    def scripted(messages, **options):
        if messages[-1].role == "tool":
            return ChatMessage(f"It is {messages[-1].content}.", role="assistant")
        block = ToolCallBlock(tool_call_id="a", tool_name="run_code", tool_kwargs={"code": "6 * 7"})
        return ChatMessage(blocks=[block], role="assistant")

    llm = MockFunctionCallingLLM(response_generator=scripted)
    found = {"example": asyncio.run(example("llama_index_agent.py")("?", llm, gateway))}
    with CellgateToolkit(
        gateway.session(checkpoint="auto"), ["run_code", "undo_last_cell", "list_files"]
    ) as toolkit:
        run, undo, files = toolkit.tools
        found["told"] = run.metadata.to_openai_tool()["function"]["parameters"]["required"]
        found["blocking"] = [run(code="x = 1; x").content, run.call(code="x = 2; x").content]
        found["undone"] = undo().content
        found["value"] = run(code="x").content
        found["files"] = files().content
        [picture] = [block for block in run(code=PLOT).blocks if isinstance(block, ImageBlock)]
        found["picture"] = [picture.image_mimetype, picture.resolve_image().read(4)[1:].decode()]
        refused = run(code="x", branch="another")
        found["refused"] = [refused.is_error, refused.content[:11]]
    return found


WITH = {
    "smolagents": with_smolagents,
    "ag2_coding": with_ag2_coding,
    "autogen": with_autogen,
    "langchain": with_langchain,
    "pydantic_ai": with_pydantic_ai,
    "agent_framework": with_agent_framework,
    "llama_index": with_llama_index,
}
print(json.dumps(WITH[WHICH]()))
