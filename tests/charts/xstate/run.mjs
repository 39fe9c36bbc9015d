// Runs charts in Holdfast's spelling on the real XState, for the differential test.
//
//   node run.mjs [--by-design] [--trace] < machines.jsonl > steps.jsonl
//
// In: one machine per line, {"js", "input", "events"}; every {"@expr"} carries its JavaScript twin in "@js".
// Out: one line per machine, {"steps": […]}, the first step being the initial transition; or {"crash": text}, which
// is a fault of the generator or of this file, and makes the exit code 1.
//
// XState is the one in $HOLDFAST_XSTATE/node_modules. Before every event the snapshot travels through JSON, as ours does.
//
// --by-design runs a copy of XState with the points patched in on which we differ on purpose: docs/charts-and-xstate.md.
// --trace adds to each step its microsteps and the transitions they took: for coverage, and for reading a difference.

import { cpSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { tmpdir } from 'node:os';
import { dirname, join, resolve as absolute } from 'node:path';
import { createInterface } from 'node:readline';

// XState counts every round, also one for an event that nobody takes; the interpreter counts transitions, up to 1,000.
const MICROSTEPS_MAX = 2000;
const DIFFERENCES = [
  [
    // Every snapshot is born here, and its value is derived from these nodes.
    'active states in document order',
    'function createMachineSnapshot(config, machine) {\n',
    'function createMachineSnapshot(config, machine) {\n' +
      '  config = { ...config, _nodes: [...config._nodes].sort((a, b) => a.order - b.order) };\n',
  ],
  [
    'what is entered is entered whole',
    '  computeEntrySet(filteredTransitions, historyValue, statesForDefaultEntry, statesToEnter);\n',
    '  computeEntrySet(filteredTransitions, historyValue, statesForDefaultEntry, statesToEnter);\n' +
      '  for (const s of [...statesToEnter]) addAncestorStatesToEnter(statesToEnter, historyValue, statesForDefaultEntry,' +
      ' getProperAncestors(s, undefined).filter((a) => !mutStateNodeSet.has(a)), undefined);\n',
  ],
];
const flags = new Set(process.argv.slice(2));
const byDesign = flags.delete('--by-design');
const xstate = loadXState();
const tracing = flags.delete('--trace');
if (flags.size) fail(`unknown: ${[...flags].join(' ')}`);

const { and, assign, cancel, createActor, enqueueActions, fromPromise, initialTransition, not, or } = xstate;
const { raise, setup, stateIn, transition } = xstate;

function fail(message) {
  process.stderr.write(`run.mjs: ${message}\n`);
  process.exit(2);
}

// --- Which XState ---------------------------------------------------------------------------------------------------

function loadXState() {
  const home = process.env.HOLDFAST_XSTATE;
  if (!home) fail('set HOLDFAST_XSTATE to the directory whose node_modules holds xstate');
  const require = createRequire(join(absolute(home), 'package.json'));
  if (!byDesign) return require('xstate');
  const main = require.resolve('xstate');
  const copy = mkdtempSync(join(tmpdir(), 'holdfast-xstate-'));
  try {
    cpSync(dirname(main), copy, { recursive: true });
    for (const [what, before, after] of DIFFERENCES) patch(copy, what, before, after);
    return require(join(copy, main.slice(dirname(main).length + 1)));
  } finally {
    rmSync(copy, { recursive: true });
  }
}

// Each must fit its source exactly once, or the copy would be XState after all.
function patch(folder, what, before, after) {
  let fits = 0;
  for (const name of readdirSync(folder).filter((name) => name.endsWith('.cjs.js') && !name.includes('.development.'))) {
    const parts = readFileSync(join(folder, name), 'utf8').split(before);
    fits += parts.length - 1;
    if (parts.length > 1) writeFileSync(join(folder, name), parts.join(after));
  }
  if (fits !== 1) fail(`the patch "${what}" fits ${fits} places of this XState, not one`);
}

// --- Holdfast's spelling to XState's --------------------------------------------------------------------------------

const functions = new Map();

function compiled(expression) {
  const text = expression['@js'];
  if (typeof text !== 'string') throw new Error(`an expression without "@js": ${JSON.stringify(expression)}`);
  if (!functions.has(text)) functions.set(text, new Function('context', 'event', 'params', 'state', `return (${text});`));
  return functions.get(text);
}

const isObject = (value) => typeof value === 'object' && value !== null;
const list = (value) => (value === undefined ? [] : Array.isArray(value) ? value : [value]);

function resolved(value, scope) {
  if (!isObject(value)) return value;
  if (Array.isArray(value)) return value.map((item) => resolved(item, scope));
  if ('@expr' in value) return compiled(value)(scope.context, scope.event, scope.params, scope.state);
  return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, resolved(item, scope)]));
}

const STATE = /\bstate\.value\b/;
const EXPRESSION = /^/;

function mentions(value, pattern) {
  if (!isObject(value)) return false;
  if ('@expr' in value) return pattern.test(value['@js']);
  return Object.values(value).some((item) => mentions(item, pattern));
}

// For places where XState hands over context and event only, so that nobody can say what the state is.
function withoutState(value) {
  if (mentions(value, STATE)) throw new Error(`state is not visible in ${JSON.stringify(value)}`);
  return value === undefined ? undefined : ({ context, event }) => resolved(value, { context, event });
}

function toMachine(spec) {
  const { context, guards = {}, actions = {}, delays = {}, ...root } = spec;
  const implementations = { guards: {}, actions: {}, delays: {}, actors: {} };

  const paths = new Map();
  (function walk(state, path) {
    if (path.length && state.id) paths.set(state.id, path);
    for (const [key, inner] of Object.entries(state.states ?? {})) walk(inner, [...path, key]);
  })(spec, []);

  function asPath(word) {
    if (typeof word !== 'string' || !word.startsWith('#')) return word;
    const [id, ...rest] = word.slice(1).split('.');
    const path = [...(paths.get(id) ?? []), ...rest];
    return path.length ? path.join('.') : word;
  }

  // XState's own higher-order guards get the snapshot through `check`; so do ours, to know state.value.
  const checked = (check) => Object.assign(() => false, { check });

  function guard(spec, params) {
    if (typeof spec === 'string') return spec;
    if ('@expr' in spec) {
      return checked((state, { context, event }) => compiled(spec)(context, event, params, state));
    }
    if ('and' in spec) return and(spec.and.map((inner) => guard(inner, params)));
    if ('or' in spec) return or(spec.or.map((inner) => guard(inner, params)));
    if ('not' in spec) return not(guard(spec.not, params));
    // In the first step an id sees the root alone, a path the states being entered: by design, both see the states.
    if ('stateIn' in spec) return stateIn(byDesign ? asPath(spec.stateIn) : spec.stateIn);
    return checked((state, { context, event }) => {
      const given = resolved(spec.params, { context, event, params, state });
      const entry = and([guard(guards[spec.type], given)]);
      return entry.check(state, { context, event }, entry);
    });
  }

  // `bound` is what an expression sees beside context and event: the params of the named action around it, the state.
  function action(spec, bound) {
    if (typeof spec === 'string') return spec;
    if (!bound.state && mentions(spec, STATE)) {
      return enqueueActions(({ enqueue, check }) => {
        let state;
        check(checked((snapshot) => (state = snapshot)));
        enqueue(action(spec, { ...bound, state }));
      });
    }
    const resolver = (value) => ({ context, event }) => resolved(value, { context, event, ...bound });
    switch (spec.type) {
      case 'assign':
        return assign(resolver(spec.assign));
      case 'raise':
        return raise(resolver(spec.event), { id: spec.id, delay: delay(spec.delay) });
      case 'cancel':
        return cancel(spec.id);
      case 'choose':
        return enqueueActions(({ enqueue, check }) => {
          const holds = (cond) => cond.guard === undefined || check(guard(cond.guard, bound.params));
          for (const inner of list(spec.conds.find(holds)?.actions)) enqueue(action(inner, bound));
        });
      default:
        return spec.params === undefined ? { type: spec.type } : { type: spec.type, params: resolver(spec.params) };
    }
  }

  const toActions = (spec) => list(spec).map((one) => action(one, {}));

  function delay(name) {
    if (typeof name === 'string' && !(name in delays)) implementations.delays[name] = milliseconds(name);
    return name;
  }

  function transitions(spec) {
    if (Array.isArray(spec)) return spec.map(transitions);
    if (typeof spec !== 'object') return { target: spec }; // a text in a list under `after` loses its target in XState
    const { target, reenter, guard: condition, actions, ...rest } = spec;
    refuse(rest, 'a transition');
    return {
      ...(target !== undefined && { target }),
      ...(reenter !== undefined && { reenter }),
      ...(condition !== undefined && { guard: guard(condition) }),
      ...(actions !== undefined && { actions: toActions(actions) }),
    };
  }

  function invocation({ src, id, input, onDone, onError, ...rest }) {
    refuse(rest, 'an invoke');
    implementations.actors[src] ??= fromPromise(() => new Promise(() => {}));
    return {
      src,
      ...(id !== undefined && { id }),
      ...(input !== undefined && { input: withoutState(input) }),
      ...(onDone !== undefined && { onDone: transitions(onDone) }),
      ...(onError !== undefined && { onError: transitions(onError) }),
    };
  }

  const same = (value) => value;
  const inside = (convert) => (map) => Object.fromEntries(Object.entries(map).map(([key, item]) => [key, convert(item)]));
  const parts = {
    id: same,
    type: same,
    history: same,
    target: same,
    tags: same,
    description: same,
    meta: same,
    states: inside(state),
    on: inside(transitions),
    after: (map) => {
      Object.keys(map).filter((key) => Number.isNaN(Number(key))).forEach(delay);
      // A target as text, in a list, under `after`: XState's getDelayedTransitions loses it. Elsewhere it reads it.
      const whole = (one) => (typeof one === 'string' ? { target: one } : one);
      return inside((spec) => transitions(Array.isArray(spec) ? spec.map(whole) : spec))(map);
    },
    always: transitions,
    onDone: transitions,
    entry: toActions,
    exit: toActions,
    invoke: (spec) => list(spec).map(invocation),
    output: withoutState,
    initial: (spec) => (typeof spec === 'string' ? spec : { ...spec, actions: toActions(spec.actions) }),
  };

  function state(spec) {
    return Object.fromEntries(
      Object.entries(spec).map(([key, value]) => {
        if (!(key in parts)) throw new Error(`a state has no ${key}`);
        return [key, parts[key](value)];
      }),
    );
  }

  for (const [name, entry] of Object.entries(guards)) implementations.guards[name] = guard(entry);
  for (const [name, entry] of Object.entries(actions)) {
    implementations.actions[name] = enqueueActions(({ enqueue }, params) => {
      for (const inner of list(entry)) enqueue(action(inner, { params }));
    });
  }
  for (const [name, value] of Object.entries(delays)) {
    implementations.delays[name] = isObject(value) ? withoutState(value) : value;
  }
  const config = { ...state(root), options: { maxIterations: MICROSTEPS_MAX } };
  config.context = mentions(context, EXPRESSION)
    ? ({ input }) => resolved(context, { context: {}, event: { type: 'xstate.init', input } })
    : context;
  return setup(implementations).createMachine(config);
}

function refuse(rest, where) {
  if (Object.keys(rest).length) throw new Error(`${where} has no ${Object.keys(rest).join(', ')}`);
}

const DURATION = /^P(?=.)(?:(\d+)W)?(?:(\d+)D)?(?:T(?=.)(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d+)?)S)?)?$/;

function milliseconds(duration) {
  const parts = DURATION.exec(duration);
  if (!parts) throw new Error(`neither a delay of this chart nor an ISO 8601 duration: ${duration}`);
  const [weeks, days, hours, minutes, seconds] = parts.slice(1).map((part) => Number(part ?? 0));
  return Math.round((((weeks * 7 + days) * 24 + hours) * 60 + minutes) * 60_000 + seconds * 1000);
}

// --- Running --------------------------------------------------------------------------------------------------------

function run({ js, input, events }) {
  try {
    return { steps: stepsOf(toMachine(js), input, events) };
  } catch (error) {
    process.exitCode = 1;
    return { crash: error.stack };
  }
}

function stepsOf(machine, input, events) {
  const parent = createActor(machine, { input }); // never started: restored children want one
  const world = { timers: new Map(), children: new Map(), unnamed: 0 };
  const steps = [];
  let snapshot;
  for (const one of [{ type: 'xstate.init', input }, ...events]) {
    const event = concrete(one, world);
    if (!event) {
      steps.push({ skipped: true });
      continue;
    }
    const next = step(machine, snapshot, event);
    steps.push(next.report);
    if (next.report.status !== 'active') break;
    for (const effect of next.report.actions) remember(effect, world);
    snapshot = machine.restoreSnapshot(JSON.parse(JSON.stringify(machine.getPersistedSnapshot(next.snapshot))), {
      self: parent,
    });
    sameStates(next.snapshot, snapshot);
  }
  return steps;
}

// XState can lose states (see `sound` in machines.py) and finds others when it reads the value again. Nobody wants to
// agree with that, so no machine should go there.
function sameStates(before, after) {
  const [left, right] = [before, after].map((snapshot) => new Set(snapshot._nodes.map((node) => node.id)));
  const odd = [...left].filter((id) => !right.has(id)).concat([...right].filter((id) => !left.has(id)));
  if (odd.length) throw new Error(`XState's snapshot was not a whole configuration: ${odd.join(', ')}`);
}

// What the symbolic event means now: {"$timer"}, {"$done"} and {"$error"} count among what is running.
function concrete(event, { timers, children }) {
  if ('$timer' in event) {
    if (!timers.size) return undefined;
    const [id, fired] = [...timers][event.$timer % timers.size];
    timers.delete(id);
    return fired;
  }
  if (!('$done' in event || '$error' in event)) return event;
  if (!children.size) return undefined;
  const actorId = [...children.keys()][(event.$done ?? event.$error) % children.size];
  children.delete(actorId);
  return '$done' in event
    ? { type: `xstate.done.actor.${actorId}`, output: event.output, actorId }
    : { type: `xstate.error.actor.${actorId}`, error: event.error, actorId };
}

function remember(effect, world) {
  const { timers, children } = world;
  switch (effect.type) {
    case 'schedule': {
      const id = effect.id ?? world.unnamed++;
      timers.delete(id);
      timers.set(id, effect.event);
      break;
    }
    case 'cancel':
      timers.delete(effect.id);
      break;
    case 'invoke':
      children.delete(effect.id);
      children.set(effect.id, effect.src);
      break;
    case 'stop':
      children.delete(effect.id);
      break;
  }
}

function step(machine, snapshot, event) {
  const initial = snapshot === undefined;
  const handled = initial || machine.getTransitionData(snapshot, event).length > 0;
  let next, actions;
  try {
    [next, actions] = initial ? initialTransition(machine, event.input) : transition(machine, snapshot, event);
    if (initial && next.status === 'error') throw next.error; // nobody can have failed yet: XState caught something
  } catch (error) {
    if (!error.message?.startsWith('Infinite loop detected')) throw error;
    return { report: { event, status: 'loop', handled, ...trace(machine, snapshot, event) } };
  }
  const history = Object.entries(next.historyValue).map(([id, nodes]) => [id, nodes.map((node) => node.id)]);
  const report = {
    event,
    value: next.value,
    context: next.context,
    status: next.status,
    output: next.output ?? null,
    error: next.error ?? null,
    actions: actions.flatMap(effects),
    history: Object.fromEntries(history),
    tags: [...next.tags].sort(),
    handled,
    ...trace(machine, snapshot, event),
  };
  return { snapshot: next, report };
}

function effects({ type, params }) {
  switch (type) {
    case 'xstate.raise':
      if (params.delay === undefined) return [];
      return [{ type: 'schedule', id: params.id ?? null, event: params.event, delay: params.delay }];
    case 'xstate.cancel':
      return [{ type: 'cancel', id: params.sendId }];
    case 'xstate.spawnChild':
      return [{ type: 'invoke', id: params.id, src: params.src, input: params.input ?? null }];
    case 'xstate.stopChild':
      return params ? [{ type: 'stop', id: params.id }] : [];
    default:
      if (type.startsWith('xstate.')) throw new Error(`an action nobody expected: ${type}`);
      return [{ type, params: params ?? null }];
  }
}

// The same step once more, on a scope whose system tells us about its microsteps. Transitions are pure, so it is the same.
// The initial microstep is not among them: XState does not announce it.
function trace(machine, snapshot, event) {
  if (!tracing) return {};
  const self = createActor(machine);
  const microsteps = [];
  const describe = ({ source, eventType, target, reenter, guard, actions }) => ({
    source: source.id,
    on: eventType,
    target: target?.map((node) => node.id) ?? null,
    reenter,
    guarded: guard !== undefined,
    actions: actions.length,
  });
  self.system._sendInspectionEvent = (told) => {
    if (told.type !== '@xstate.microstep') return;
    const transitions = told._transitions.map(describe);
    microsteps.push({ event: told.event.type, transitions, value: told.snapshot.value });
  };
  const scope = { self, system: self.system, defer() {}, actionExecutor() {} };
  try {
    if (snapshot === undefined) machine.getInitialSnapshot(scope, event.input);
    else machine.transition(snapshot, event, scope);
  } catch {
    // a loop: the microsteps up to here are the interesting part
  }
  return { microsteps };
}

for await (const line of createInterface({ input: process.stdin, crlfDelay: Infinity })) {
  if (line.trim()) process.stdout.write(`${JSON.stringify(run(JSON.parse(line)))}\n`);
}
