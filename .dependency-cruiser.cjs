const { readdirSync } = require("node:fs");

// The arrows between packages (a package may import what stands to its right, nothing else), and between test and code.
const layer1 = ["core", "planner", "trajectories", "multiplexer", "learning", "transport", "observe"];
const policies = ["core", "planner", "trajectories", "multiplexer", "learning"];

const allowed = {
  contracts: [],
  ...Object.fromEntries(layer1.map((name) => [name, ["contracts"]])),
  actions: ["contracts", "transport", "observe"],
  engines: ["contracts", "transport", "observe"],
  runtime: ["contracts", "core", "planner", "trajectories", "multiplexer", "transport", "observe"],
  workers: ["contracts", "runtime", "engines", "actions", "trajectories", "learning"],
  // of the actions what decides: see what virtual time may reach
  simulation: ["contracts", ...policies, "actions"],
  dashboard: ["contracts", ...layer1, "actions", "engines", "runtime", "workers", "simulation"],
  // private: measures what the others do, and is published with none of them
  bench: ["contracts", ...layer1, "actions", "engines", "runtime", "workers", "simulation", "dashboard"],
  cli: ["contracts", ...layer1, "actions", "engines", "runtime", "workers", "simulation", "dashboard", "bench"],
};

/** What packages export, by the file that is its source. */
const publicEntries = readdirSync(`${__dirname}/packages`).flatMap((name) => {
  const { exports = {} } = require(`./packages/${name}/package.json`);
  return Object.values(exports).flatMap(({ source }) =>
    source === undefined ? [] : [`^packages/${name}/${source.slice("./".length)}$`],
  );
});

/** The processes of a run, a folder each. A runner that needs no node agent is its machine's node itself. */
const processes = {
  author: [],
  worker: ["author"],
  node: ["author"],
  runner: ["author", "node"],
  pool: ["node", "runner"],
};
/** The runner from below: each folder may import those before it. */
const layersOfRunner = ["loop", "nodes", "placement", "cluster", "run"];

module.exports = {
  forbidden: [
    ...Object.entries(allowed).map(([name, targets]) => ({
      name: `arrows-of-${name}`,
      severity: "error",
      from: { path: `^packages/${name}/(src|test)/` },
      to: { path: "^packages/([^/]+)/", pathNot: `^packages/(${[name, ...targets].join("|")})/` },
    })),
    ...Object.entries(processes).map(([name, targets]) => ({
      name: `process-${name}`,
      comment: "what runs in one process imports nothing of another's but what the picture allows",
      severity: "error",
      from: { path: `^packages/runtime/src/${name}/` },
      to: { path: "^packages/runtime/src/", pathNot: `^packages/runtime/src/(${[name, ...targets].join("|")})/` },
    })),
    ...layersOfRunner.map((name, index) => ({
      name: `layer-${name}-of-the-runner`,
      severity: "error",
      from: { path: `^packages/runtime/src/runner/${name}/` },
      to: {
        path: "^packages/runtime/src/runner/",
        pathNot: `^packages/runtime/src/runner/(${layersOfRunner.slice(0, index + 1).join("|")})/`,
      },
    })),
    {
      name: "workflows-use-public-entries",
      comment: "a workflow imports packages by name, so it sees what a user sees",
      severity: "error",
      from: { path: "^workflows/" },
      to: { path: "^packages/[^/]+/src/(?!(index|runner|testing)\\.ts|public/)" },
    },
    {
      name: "virtual-time-reaches-no-mechanism",
      comment:
        "what decides, and whatever drives it on virtual time, reaches no process, socket, timer or file, by no detour",
      severity: "error",
      from: { path: `^packages/(${[...policies, "simulation"].join("|")})/src/` },
      to: {
        reachable: true,
        path: "^packages/(transport|observe|engines|runtime)/|^node:|^(?:fs|net|os|timers|child_process|worker_threads)$",
      },
    },
    {
      name: "packages-by-public-entry",
      severity: "error",
      from: { path: "^packages/([^/]+)/" },
      to: { path: "^packages/([^/]+)/src/", pathNot: ["^packages/$1/", ...publicEntries] },
    },
    {
      name: "insides-are-for-benches",
      comment: "what a package shows at ./internal is measured, and used by nobody",
      severity: "error",
      from: { path: "^packages/(?!bench/)" },
      to: { path: "^packages/[^/]+/src/internal\\.ts$" },
    },
    {
      name: "no-cycles",
      severity: "error",
      from: {},
      to: { circular: true, viaOnly: { dependencyTypesNot: ["type-only"] } },
    },
    {
      name: "no-unlisted-packages",
      severity: "error",
      from: { path: "^packages/[^/]+/src/" },
      to: { dependencyTypes: ["npm-no-pkg", "npm-unknown"] },
    },
  ],
  options: {
    doNotFollow: { path: "node_modules" },
    exclude: { path: "(/dist/|/node_modules/)" },
    tsConfig: { fileName: "tsconfig.json" },
    tsPreCompilationDeps: true,
    enhancedResolveOptions: { conditionNames: ["source", "import", "default"], exportsFields: ["exports"] },
    combinedDependencies: false,
  },
};
