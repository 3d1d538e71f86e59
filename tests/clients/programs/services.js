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

// The socket breaks while a cell runs: what it prints meanwhile comes with the next one.
async function breakAndReturn(kernel) {
  const printed = [];
  const code = "import time\nfor n in range(6): print(n, flush=True); time.sleep(0.3)";
  const future = kernel.requestExecute({ code });
  let broken;
  future.onIOPub = (message) => {
    if (message.header.msg_type !== "stream") return;
    printed.push(message.content.text);
    broken ??= kernel.reconnect();
  };
  await inTime(future.done, "end of the cell after a reconnect");
  await broken;
  return printed.join("");
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
  happened.cell = await execute(kernel, "print('hi'); 1 + 1");
  happened.failed = await execute(kernel, "1/0");
  happened.completed = (await kernel.requestComplete({ code: "pri", cursor_pos: 3 })).content.matches;
  happened.comm = await talk(kernel);
  const sleep = "import time; print('on', flush=True); time.sleep(60)";
  happened.interrupted = await execute(kernel, sleep, () => kernel.interrupt());
  happened.reconnected = await breakAndReturn(kernel);
  await execute(kernel, "x = 1");
  happened.statuses = [];
  const note = (_, status) => happened.statuses.push(status);
  kernel.statusChanged.connect(note);
  await kernel.restart();
  happened.restarted = await execute(kernel, "assert 'x' not in globals(); print('new')");
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
