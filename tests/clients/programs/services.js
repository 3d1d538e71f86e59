// Run by node: @jupyterlab/services on the gateway. Arguments: the gateway's URL, its token.
// Prints one JSON object with what happened.
const { KernelManager, ServerConnection } = require("@jupyterlab/services");

const [url, token] = process.argv.slice(2);
const DEADLINE = 60_000;

function inTime(promise, what) {
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(`no ${what} in time`)), DEADLINE);
  });
  return Promise.race([promise, late]).finally(() => clearTimeout(timer));
}

// What comes of a cell, up to its end; `onStream` is called when it prints.
async function execute(kernel, code, onStream) {
  const seen = [];
  const future = kernel.requestExecute({ code });
  future.onIOPub = (message) => {
    seen.push(message.content.execution_state ?? message.header.msg_type);
    if (message.header.msg_type === "stream" && onStream) onStream();
  };
  const reply = await inTime(future.done, `end of ${code}`);
  return { seen, status: reply.content.status };
}

function until(signal, condition, what) {
  return inTime(
    new Promise((resolve) => {
      const look = (_, value) => {
        if (condition(value)) {
          signal.disconnect(look);
          resolve();
        }
      };
      signal.connect(look);
    }),
    what,
  );
}

const ECHO = `
def echo(comm, opened):
    comm.on_msg(lambda m: comm.send({"n": m["content"]["data"]["n"] + 1}, buffers=[bytes(m["buffers"][0])[::-1]]))
get_ipython().kernel.comm_manager.register_target("echo", echo)`;

// A message with a binary buffer there and back.
async function talk(kernel) {
  await execute(kernel, ECHO);
  const comm = kernel.createComm("echo");
  const answered = new Promise((resolve) => {
    comm.onMsg = resolve;
  });
  comm.open();
  comm.send({ n: 1 }, {}, [new Uint8Array([1, 2, 3]).buffer]);
  const message = await inTime(answered, "answer of the comm");
  const [buffer] = message.buffers;
  return { n: message.content.data.n, bytes: [...new Uint8Array(buffer.buffer ?? buffer)] };
}

// The answer to a request of `path`, once `condition` holds for it.
async function ask(settings, path, condition, options = {}) {
  // The default cache, "no-store", has JupyterLab add a query, which /v1 refuses.
  const request = { cache: "default", ...options };
  for (const begun = Date.now(); Date.now() - begun < DEADLINE; ) {
    const answer = await ServerConnection.makeRequest(settings.baseUrl + path, request, settings);
    if (!answer.ok) throw new Error(`${path}: ${answer.status} ${await answer.text()}`);
    const content = await answer.json();
    if (condition(content)) return content;
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
  throw new Error(`${path} never became what was waited for`);
}

// The socket breaks while a cell runs: what it prints without one comes with the next one. The cell waits until
// the gateway has noticed: what reaches a client that is about to close its socket is that client's loss.
async function breakAndReturn(kernel, settings) {
  const printed = [];
  const model = `api/kernels/${kernel.id}`;
  const gone = `v1/sessions/${kernel.id}/files/gone`;
  const code = [
    "import pathlib, time",
    "print(0, flush=True)",
    "while not pathlib.Path('gone').exists(): time.sleep(0.02)",
    "for n in range(1, 6): print(n, flush=True)",
  ].join("\n");
  const future = kernel.requestExecute({ code });
  await inTime(
    new Promise((resolve) => {
      future.onIOPub = (message) => {
        if (message.header.msg_type !== "stream") return;
        printed.push(message.content.text);
        resolve();
      };
    }),
    "first line",
  );
  kernel._clearSocket();
  await ask(settings, model, (content) => content.connections === 0);
  await ask(settings, gone, () => true, { method: "PUT", body: "" });
  await ask(settings, model, (content) => content.execution_state === "idle");
  const missed = printed.join("") === "0\n";
  await inTime(kernel.reconnect(), "new socket");
  await inTime(future.done, "end of the cell after a reconnect");
  return { missed, printed: printed.join("") };
}

async function main() {
  const serverSettings = ServerConnection.makeSettings({
    baseUrl: `${url}/`,
    wsUrl: `${url.replace("http", "ws")}/`,
    token,
    appendToken: true,
  });
  const manager = new KernelManager({ serverSettings });
  await inTime(manager.ready, "list of kernels");
  const kernel = await manager.startNew({ name: "python3" });
  const info = await inTime(kernel.info, "kernel_info_reply");
  const happened = { kernel: kernel.id, language: info.language_info.name };
  happened.protocol = kernel._ws?.protocol;
  happened.cell = await execute(kernel, "print('hi', end=''); 1 + 1");
  happened.failed = await execute(kernel, "1/0");
  happened.completed = (await kernel.requestComplete({ code: "pri", cursor_pos: 3 })).content.matches;
  happened.comm = await talk(kernel);
  const sleep = "import time; print('on', end='', flush=True); time.sleep(60)";
  happened.interrupted = await execute(kernel, sleep, () => kernel.interrupt());
  happened.reconnected = await breakAndReturn(kernel, serverSettings);
  await execute(kernel, "x = 1");
  happened.statuses = [];
  const note = (_, status) => happened.statuses.push(status);
  kernel.statusChanged.connect(note);
  await kernel.restart();
  happened.restarted = await execute(kernel, "assert 'x' not in globals(); print('new', end='')");
  const another = manager.connectTo({ model: kernel.model });
  kernel.statusChanged.disconnect(note);
  happened.shared = (await execute(another, "print('from another client')")).status;
  const gone = until(kernel.statusChanged, (status) => status === "dead", "status dead");
  await kernel.shutdown();
  await gone;
  await manager.refreshRunning();
  happened.left = [...manager.running()].some((model) => model.id === kernel.id);
  manager.dispose();
  process.stdout.write(`${JSON.stringify(happened)}\n`, () => process.exit(0));
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
