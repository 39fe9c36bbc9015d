// What one advance costs XState: rehydrate from JSON, one transition, persist to JSON. Prints microseconds of CPU each.
//
//   HOLDFAST_XSTATE=folder node advance.mjs COUNT
import { createRequire } from 'node:module';
import { join, resolve } from 'node:path';

const require = createRequire(join(resolve(process.env.HOLDFAST_XSTATE), 'package.json'));
const { assign, initialTransition, setup, transition } = require('xstate');

// The same chart as in bench/charts.py: three regions of five states, a guard and an assignment in the first.
const states = {};
for (let region = 0; region < 3; region++) {
  const inner = {};
  for (let n = 0; n < 5; n++) {
    const next = { target: `s${(n + 1) % 5}` };
    if (region === 0) {
      next.guard = ({ context }) => context.n < context.limit;
      next.actions = assign({ n: ({ context }) => context.n + 1 });
    }
    inner[`s${n}`] = { on: { next } };
  }
  states[`r${region}`] = { initial: 's0', states: inner };
}
const machine = setup({}).createMachine({ id: 'b', type: 'parallel', context: { n: 0, limit: 1e6 }, states });

let text = JSON.stringify(machine.getPersistedSnapshot(initialTransition(machine)[0]));

function advance() {
  const snapshot = machine.restoreSnapshot(JSON.parse(text), {});
  text = JSON.stringify(machine.getPersistedSnapshot(transition(machine, snapshot, { type: 'next' })[0]));
}

const count = Number(process.argv[2] ?? 5000);
for (let n = 0; n < 3000; n++) advance(); // let the compiler warm up
const before = process.cpuUsage();
for (let n = 0; n < count; n++) advance();
const used = process.cpuUsage(before);
console.log((used.user + used.system) / count);
