// Run by node: clients of other systems, unchanged, at the gateway's doors for them.
// Arguments: the gateway's URL, its token, a folder, and which client. Prints one JSON object with what happened.
const [url, token, , which] = process.argv.slice(2);

async function e2b() {
  Object.assign(process.env, { E2B_API_URL: `${url}/e2b`, E2B_SANDBOX_URL: `${url}/e2b`, E2B_API_KEY: token });
  const { Sandbox } = require("@e2b/code-interpreter");
  const sandbox = await Sandbox.create({ timeoutMs: 60_000, metadata: { who: "us" } });
  const seen = [];
  const ran = await sandbox.runCode("print('hi')\nx = 6\n[x, x * 7]", { onStdout: (line) => seen.push(line.line) });
  const found = { cell: [ran.results[0].json, ran.logs.stdout, seen] };
  found.kept = (await sandbox.runCode("x")).text;
  found.error = (await sandbox.runCode("1 / 0")).error.name;
  const context = await sandbox.createCodeContext();
  found.context = (await sandbox.runCode("x", { context })).error.name;
  await sandbox.files.write("a/b.txt", "written");
  const listed = await sandbox.files.list("a");
  found.files = [await sandbox.files.read("a/b.txt"), listed.map((each) => each.name)];
  await sandbox.files.write("packed", "x".repeat(100_000), { gzip: true });
  found.packed = (await sandbox.files.read("packed")).length;
  const done = await sandbox.commands.run("cat a/b.txt; echo no >&2");
  found.command = [done.stdout, done.stderr, done.exitCode];
  const name = (error) => [error.name, /nothing|999999/.test(error.message)];
  found.refused = [
    await sandbox.commands.run("true", { cwd: "/nothing" }).catch(name),
    await sandbox.commands.connect(999999).catch(name),
  ];
  found.watched = await watched(sandbox);
  const [metrics] = await sandbox.getMetrics();
  found.metrics = metrics.memUsed > 0 && metrics.memUsed < metrics.memTotal;
  found.again = (await (await Sandbox.connect(sandbox.sandboxId)).runCode("x")).text;
  await sandbox.kill();
  return found;
}

async function e2b_pause() {
  Object.assign(process.env, { E2B_API_URL: `${url}/e2b`, E2B_SANDBOX_URL: `${url}/e2b`, E2B_API_KEY: token });
  const { Sandbox } = require("@e2b/code-interpreter");
  const sandbox = await Sandbox.create({ timeoutMs: 60_000 });
  await sandbox.runCode("x = 6");
  const paused = [await sandbox.pause(), await sandbox.pause(), await sandbox.isRunning()];
  const again = await Sandbox.connect(sandbox.sandboxId);
  const found = { paused, resumed: [(await again.runCode("x")).text, await again.isRunning()] };
  await again.pause();
  await again.kill();
  return found;
}

async function e2b_auto_pause() {
  Object.assign(process.env, { E2B_API_URL: `${url}/e2b`, E2B_SANDBOX_URL: `${url}/e2b`, E2B_API_KEY: token });
  const { Sandbox } = require("@e2b/code-interpreter");
  const sandbox = await Sandbox.create({ timeoutMs: 3_000, lifecycle: { onTimeout: "pause" } });
  await sandbox.runCode("x = 6");
  const { lifecycle } = await sandbox.getInfo();
  while ((await sandbox.getInfo()).state !== "paused") await new Promise((resolve) => setTimeout(resolve, 100));
  const running = await sandbox.isRunning();
  const again = await Sandbox.connect(sandbox.sandboxId, { timeoutMs: 60_000 });
  const found = { lifecycle, running, resumed: [(await again.runCode("x")).text, await again.isRunning()] };
  await again.kill();
  return found;
}

async function watched(sandbox) {
  const seen = [];
  let told;
  const both = new Promise((resolve) => (told = resolve));
  const watch = await sandbox.files.watchDir("a", (event) => seen.push([event.type, event.name]) === 2 && told());
  await sandbox.files.write("a/new.txt", "new");
  await both;
  await watch.stop();
  const refused = await sandbox.files.watchDir("nothing", () => {}).catch((error) => error.name);
  return [...seen, refused];
}

async function librechat() {
  process.env.LIBRECHAT_CODE_BASEURL = `${url}/librechat/key/${token}`;
  // As LibreChat does: `require` would find another node-fetch than the one that it is made for.
  const { createCodeExecutionTool } = await import(`${process.env.NODE_PATH}/@librechat/agents/dist/esm/main.mjs`);
  const tool = createCodeExecutionTool();
  return {
    printed: String(await tool.invoke({ lang: "py", code: "print(6 * 7)" })).includes("42"),
    failed: String(await tool.invoke({ lang: "py", code: "1 / 0" })).includes("ZeroDivisionError"),
    made: String(await tool.invoke({ lang: "py", code: "open('/mnt/data/a.png', 'w').write('x')" })).includes("including 1 image"),
  };
}

const KNOWN = { e2b, e2b_pause, e2b_auto_pause, librechat };
KNOWN[which]().then(
  (found) => process.stdout.write(`${JSON.stringify(found)}\n`, () => process.exit(0)),
  (error) => {
    console.error(error);
    process.exit(1);
  },
);
