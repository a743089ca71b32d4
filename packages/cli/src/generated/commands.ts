/** Written by 'npm run docs:reference' from the commands themselves. */
import type { CommandManifest } from "../command-manifest.ts";

export const commandManifests: readonly CommandManifest[] = [
  {
    "name": "init",
    "description": "writes a project of your own: a workflow, its configuration with a schema for editors, and a test",
    "arguments": [
      {
        "term": "[folder]",
        "description": "of the project; must not have these files yet",
        "default": "."
      }
    ],
    "options": [
      {
        "flags": "--template <name>",
        "description": "what the workflow is like; asked for on a terminal",
        "choices": [
          "own",
          "reasoning",
          "tools",
          "embodied"
        ]
      },
      {
        "flags": "--no-install",
        "description": "writes the files and installs nothing"
      },
      {
        "flags": "--packages <folder>",
        "description": "takes Treadle from the archives that 'npm run pack -- <folder>' of a checkout makes"
      }
    ],
    "commands": []
  },
  {
    "name": "run",
    "description": "runs a workflow",
    "arguments": [
      {
        "term": "<workflow>",
        "description": "folder of the workflow, as workflows/reasoning-grpo"
      }
    ],
    "options": [
      {
        "flags": "--set <key.path=value>",
        "description": "overrides a value of the configuration; may be repeated",
        "default": []
      },
      {
        "flags": "--runs <folder>",
        "description": "where runs keep their folders (default: runs/ of the project)"
      },
      {
        "flags": "--pool [name]",
        "description": "shares devices with other runs, in that pool (default: this machine's) at --nats or --cluster"
      },
      {
        "flags": "--dashboard",
        "description": "serves the live page of 'treadle dashboard' while it runs"
      },
      {
        "flags": "--plain",
        "description": "plain lines instead of the live view"
      },
      {
        "flags": "--json",
        "description": "prints one summary object on standard output and nothing else there"
      },
      {
        "flags": "--cluster <folder>",
        "description": "servers and keys of a cluster, as 'treadle cluster init' made them",
        "env": "TREADLE_CLUSTER"
      },
      {
        "flags": "--nats <address>",
        "description": "NATS server, as nats://host:4222; several of one cluster with commas",
        "env": "TREADLE_NATS_URL"
      },
      {
        "flags": "--subject-prefix <name>",
        "description": "prefix of NATS subjects; equal for the runs and nodes of one project"
      },
      {
        "flags": "--credentials <file>",
        "description": "credentials or key of NATS; or TREADLE_NATS_USER and TREADLE_NATS_PASSWORD"
      },
      {
        "flags": "--trust <file>",
        "description": "public keys of the runners and nodes that are trusted; required beyond this machine"
      },
      {
        "flags": "--key <file>",
        "description": "this process's own key, if the credentials do not hold it"
      },
      {
        "flags": "--nats-ca <file>",
        "description": "authority of the NATS server's certificate"
      },
      {
        "flags": "--nats-cert <file>",
        "description": "certificate for the NATS server"
      },
      {
        "flags": "--nats-key <file>",
        "description": "its key"
      },
      {
        "flags": "--replicas <count>",
        "description": "NATS servers that keep what must survive: 3 in a cluster of three"
      },
      {
        "flags": "--config <file>",
        "description": "configuration file (default: config.yaml of the workflow)"
      },
      {
        "flags": "--pooled",
        "description": "started by 'treadle multiplex', which it tells everything",
        "isHidden": true
      }
    ],
    "commands": []
  },
  {
    "name": "resume",
    "description": "continues a run after its last finished step; with --nats also a run of another machine that was kept there",
    "arguments": [
      {
        "term": "<run>",
        "description": "id of the run, as 'treadle runs' lists them"
      }
    ],
    "options": [
      {
        "flags": "--set <key.path=value>",
        "description": "overrides a value of the configuration; may be repeated",
        "default": []
      },
      {
        "flags": "--runs <folder>",
        "description": "where runs keep their folders (default: runs/ of the project)"
      },
      {
        "flags": "--pool [name]",
        "description": "shares devices with other runs, in that pool (default: this machine's) at --nats or --cluster"
      },
      {
        "flags": "--dashboard",
        "description": "serves the live page of 'treadle dashboard' while it runs"
      },
      {
        "flags": "--plain",
        "description": "plain lines instead of the live view"
      },
      {
        "flags": "--json",
        "description": "prints one summary object on standard output and nothing else there"
      },
      {
        "flags": "--cluster <folder>",
        "description": "servers and keys of a cluster, as 'treadle cluster init' made them",
        "env": "TREADLE_CLUSTER"
      },
      {
        "flags": "--nats <address>",
        "description": "NATS server, as nats://host:4222; several of one cluster with commas",
        "env": "TREADLE_NATS_URL"
      },
      {
        "flags": "--subject-prefix <name>",
        "description": "prefix of NATS subjects; equal for the runs and nodes of one project"
      },
      {
        "flags": "--credentials <file>",
        "description": "credentials or key of NATS; or TREADLE_NATS_USER and TREADLE_NATS_PASSWORD"
      },
      {
        "flags": "--trust <file>",
        "description": "public keys of the runners and nodes that are trusted; required beyond this machine"
      },
      {
        "flags": "--key <file>",
        "description": "this process's own key, if the credentials do not hold it"
      },
      {
        "flags": "--nats-ca <file>",
        "description": "authority of the NATS server's certificate"
      },
      {
        "flags": "--nats-cert <file>",
        "description": "certificate for the NATS server"
      },
      {
        "flags": "--nats-key <file>",
        "description": "its key"
      },
      {
        "flags": "--replicas <count>",
        "description": "NATS servers that keep what must survive: 3 in a cluster of three"
      },
      {
        "flags": "--checkpoint <name>",
        "description": "states of a checkpoint instead of the last step's, as step-000040"
      }
    ],
    "commands": []
  },
  {
    "name": "validate",
    "description": "checks a workflow's configuration and placement without starting anything, and prints both resolved",
    "arguments": [
      {
        "term": "<workflow>",
        "description": "folder of the workflow"
      }
    ],
    "options": [
      {
        "flags": "--set <key.path=value>",
        "description": "overrides a value of the configuration; may be repeated",
        "default": []
      },
      {
        "flags": "--cluster <folder>",
        "description": "servers and keys of a cluster, as 'treadle cluster init' made them",
        "env": "TREADLE_CLUSTER"
      },
      {
        "flags": "--config <file>",
        "description": "configuration file (default: config.yaml of the workflow)"
      },
      {
        "flags": "--json",
        "description": "prints one object with config and plan"
      }
    ],
    "commands": []
  },
  {
    "name": "schema",
    "description": "prints the JSON Schema of a workflow's configuration, by which editors complete and check config.yaml",
    "arguments": [
      {
        "term": "<workflow>",
        "description": "folder of the workflow"
      }
    ],
    "options": [],
    "commands": []
  },
  {
    "name": "graph",
    "description": "runs one step of a workflow and draws what flows between its components",
    "arguments": [
      {
        "term": "<workflow>",
        "description": "folder of the workflow, as workflows/reasoning-grpo"
      }
    ],
    "options": [
      {
        "flags": "--set <key.path=value>",
        "description": "overrides a value of the configuration; may be repeated",
        "default": []
      },
      {
        "flags": "--cluster <folder>",
        "description": "servers and keys of a cluster, as 'treadle cluster init' made them",
        "env": "TREADLE_CLUSTER"
      },
      {
        "flags": "--config <file>",
        "description": "configuration file (default: config.yaml of the workflow)"
      },
      {
        "flags": "--json",
        "description": "prints one object on standard output and nothing else there"
      },
      {
        "flags": "--profile",
        "description": "draws the graph of the kept profile; runs nothing"
      },
      {
        "flags": "--svg <file>",
        "description": "where the drawing goes (default: <workflow>-flow.svg)"
      }
    ],
    "commands": []
  },
  {
    "name": "profile",
    "description": "measures what each component of a workflow costs, and keeps it for 'treadle plan' and automatic placement",
    "arguments": [
      {
        "term": "<workflow>",
        "description": "folder of the workflow, as workflows/reasoning-grpo"
      }
    ],
    "options": [
      {
        "flags": "--set <key.path=value>",
        "description": "overrides a value of the configuration; may be repeated",
        "default": []
      },
      {
        "flags": "--cluster <folder>",
        "description": "servers and keys of a cluster, as 'treadle cluster init' made them",
        "env": "TREADLE_CLUSTER"
      },
      {
        "flags": "--config <file>",
        "description": "configuration file (default: config.yaml of the workflow)"
      },
      {
        "flags": "--json",
        "description": "prints one object on standard output and nothing else there"
      }
    ],
    "commands": []
  },
  {
    "name": "compare",
    "description": "runs a workflow in every mode, as planned and automatically, and compares what a step takes",
    "arguments": [
      {
        "term": "<workflow>",
        "description": "folder of the workflow"
      }
    ],
    "options": [
      {
        "flags": "--set <key.path=value>",
        "description": "overrides a value of the configuration; may be repeated",
        "default": []
      },
      {
        "flags": "--cluster <folder>",
        "description": "servers and keys of a cluster, as 'treadle cluster init' made them",
        "env": "TREADLE_CLUSTER"
      },
      {
        "flags": "--config <files...>",
        "description": "configuration files, one workload each (default: config.yaml of the workflow)",
        "default": []
      },
      {
        "flags": "--steps <count>",
        "description": "steps measured under each plan at least",
        "default": "8"
      },
      {
        "flags": "--precision <share>",
        "description": "goes on until the standard error of a step's mean is this share of it, for at most eight times as many steps",
        "default": "0.01"
      },
      {
        "flags": "--random <count>",
        "description": "draws this many workloads instead, by the workflow's draw.ts, and judges them; ends with 1 where they miss a promise"
      },
      {
        "flags": "--seed <numbers...>",
        "description": "seeds of the draws; each draws that many workloads",
        "default": [
          "0"
        ]
      },
      {
        "flags": "--parallel <count>",
        "description": "drawn workloads that are measured at once",
        "default": "1"
      },
      {
        "flags": "--repeats <count>",
        "description": "times that a plan is measured again where other work disturbed it",
        "default": "0"
      },
      {
        "flags": "--shrink <tries>",
        "description": "smaller workloads that are tried where a drawn one misses a limit or does not run",
        "default": "8"
      },
      {
        "flags": "--results <file>",
        "description": "keeps what was drawn and measured; what it has is not measured again"
      },
      {
        "flags": "--again",
        "description": "predicts and simulates with the present code what --results has; measures nothing"
      },
      {
        "flags": "--apart",
        "description": "one drawn workload, for the process that started this one",
        "isHidden": true
      },
      {
        "flags": "--json",
        "description": "prints one object on standard output and nothing else there"
      }
    ],
    "commands": []
  },
  {
    "name": "pool",
    "description": "devices of this machine that several runs share, whichever come and go",
    "arguments": [],
    "options": [],
    "commands": [
      {
        "name": "start",
        "description": "shares the devices of this machine among runs that are started with --pool, until SIGTERM",
        "arguments": [
          {
            "term": "[name]",
            "description": "how runs call it (default: as the machine is called)"
          }
        ],
        "options": [
          {
            "flags": "--cluster <folder>",
            "description": "servers and keys of a cluster, as 'treadle cluster init' made them",
            "env": "TREADLE_CLUSTER"
          },
          {
            "flags": "--nats <address>",
            "description": "NATS server, as nats://host:4222; several of one cluster with commas",
            "env": "TREADLE_NATS_URL"
          },
          {
            "flags": "--subject-prefix <name>",
            "description": "prefix of NATS subjects; equal for the runs and nodes of one project"
          },
          {
            "flags": "--credentials <file>",
            "description": "credentials or key of NATS; or TREADLE_NATS_USER and TREADLE_NATS_PASSWORD"
          },
          {
            "flags": "--trust <file>",
            "description": "public keys of the runners and nodes that are trusted; required beyond this machine"
          },
          {
            "flags": "--key <file>",
            "description": "this process's own key, if the credentials do not hold it"
          },
          {
            "flags": "--nats-ca <file>",
            "description": "authority of the NATS server's certificate"
          },
          {
            "flags": "--nats-cert <file>",
            "description": "certificate for the NATS server"
          },
          {
            "flags": "--nats-key <file>",
            "description": "its key"
          },
          {
            "flags": "--replicas <count>",
            "description": "NATS servers that keep what must survive: 3 in a cluster of three"
          },
          {
            "flags": "--turn <seconds>",
            "description": "how long a run of weight 1 keeps devices that others wait for",
            "default": "10"
          },
          {
            "flags": "--patience <seconds>",
            "description": "a run that has waited for longer is not overtaken by one of larger priority",
            "default": "60"
          },
          {
            "flags": "--yield-limit <seconds>",
            "description": "ends a run that has not yielded this long after it had to",
            "default": "600"
          },
          {
            "flags": "--beat-limit <seconds>",
            "description": "ends a run that gives no sign of life for this long",
            "default": "30"
          },
          {
            "flags": "--method <name>",
            "description": "how is decided which runs of 'pool.share: always' compute beside each other: greedy, lookahead, playout, temporal",
            "default": "greedy"
          },
          {
            "flags": "--window <decisions>",
            "description": "how many decisions 'lookahead' follows",
            "default": "3"
          },
          {
            "flags": "--residents <count>",
            "description": "runs that keep memory on a device together; others wait",
            "default": "2"
          },
          {
            "flags": "--runs <folder>",
            "description": "where runs keep their folders, and the pool its history (default: runs/ of the project)"
          }
        ],
        "commands": []
      },
      {
        "name": "status",
        "description": "shows which run has which devices, which run waits for which, and how much slower each is",
        "arguments": [
          {
            "term": "[name]",
            "description": "of the pool (default: all that are there)"
          }
        ],
        "options": [
          {
            "flags": "--cluster <folder>",
            "description": "servers and keys of a cluster, as 'treadle cluster init' made them",
            "env": "TREADLE_CLUSTER"
          },
          {
            "flags": "--nats <address>",
            "description": "NATS server, as nats://host:4222; several of one cluster with commas",
            "env": "TREADLE_NATS_URL"
          },
          {
            "flags": "--subject-prefix <name>",
            "description": "prefix of NATS subjects; equal for the runs and nodes of one project"
          },
          {
            "flags": "--credentials <file>",
            "description": "credentials or key of NATS; or TREADLE_NATS_USER and TREADLE_NATS_PASSWORD"
          },
          {
            "flags": "--trust <file>",
            "description": "public keys of the runners and nodes that are trusted; required beyond this machine"
          },
          {
            "flags": "--key <file>",
            "description": "this process's own key, if the credentials do not hold it"
          },
          {
            "flags": "--nats-ca <file>",
            "description": "authority of the NATS server's certificate"
          },
          {
            "flags": "--nats-cert <file>",
            "description": "certificate for the NATS server"
          },
          {
            "flags": "--nats-key <file>",
            "description": "its key"
          },
          {
            "flags": "--replicas <count>",
            "description": "NATS servers that keep what must survive: 3 in a cluster of three"
          },
          {
            "flags": "--json",
            "description": "prints one object"
          }
        ],
        "commands": []
      }
    ]
  },
  {
    "name": "multiplex",
    "description": "runs several workflows at once, which share the devices of this machine",
    "arguments": [
      {
        "term": "<workflows...>",
        "description": "folders of the workflows, with names where two are alike, as one=workflows/bandit"
      }
    ],
    "options": [
      {
        "flags": "--set <key.path=value>",
        "description": "overrides a value of the configuration; may be repeated",
        "default": []
      },
      {
        "flags": "--turn <seconds>",
        "description": "how long a run of weight 1 keeps devices that others wait for",
        "default": "10"
      },
      {
        "flags": "--patience <seconds>",
        "description": "a run that has waited for longer is not overtaken by one of larger priority",
        "default": "60"
      },
      {
        "flags": "--yield-limit <seconds>",
        "description": "ends a run that has not yielded this long after it had to",
        "default": "600"
      },
      {
        "flags": "--beat-limit <seconds>",
        "description": "ends a run that gives no sign of life for this long",
        "default": "15"
      },
      {
        "flags": "--method <name>",
        "description": "how is decided which runs of 'pool.share: always' compute beside each other: greedy, lookahead, playout, temporal",
        "default": "greedy"
      },
      {
        "flags": "--window <decisions>",
        "description": "how many decisions 'lookahead' follows",
        "default": "3"
      },
      {
        "flags": "--config <name=file>",
        "description": "configuration file of a run; may be repeated",
        "default": []
      },
      {
        "flags": "--runs <folder>",
        "description": "where runs keep their folders (default: runs/ of the project)"
      },
      {
        "flags": "--residents <count>",
        "description": "runs that keep memory on a device together; others wait (default: all of them)"
      },
      {
        "flags": "--plain",
        "description": "plain lines instead of the live view"
      },
      {
        "flags": "--json",
        "description": "prints one object on standard output and nothing else there"
      }
    ],
    "commands": []
  },
  {
    "name": "runs",
    "description": "lists runs, the newest last",
    "arguments": [],
    "options": [
      {
        "flags": "--cluster <folder>",
        "description": "servers and keys of a cluster, as 'treadle cluster init' made them",
        "env": "TREADLE_CLUSTER"
      },
      {
        "flags": "--nats <address>",
        "description": "NATS server, as nats://host:4222; several of one cluster with commas",
        "env": "TREADLE_NATS_URL"
      },
      {
        "flags": "--subject-prefix <name>",
        "description": "prefix of NATS subjects; equal for the runs and nodes of one project"
      },
      {
        "flags": "--credentials <file>",
        "description": "credentials or key of NATS; or TREADLE_NATS_USER and TREADLE_NATS_PASSWORD"
      },
      {
        "flags": "--trust <file>",
        "description": "public keys of the runners and nodes that are trusted; required beyond this machine"
      },
      {
        "flags": "--key <file>",
        "description": "this process's own key, if the credentials do not hold it"
      },
      {
        "flags": "--nats-ca <file>",
        "description": "authority of the NATS server's certificate"
      },
      {
        "flags": "--nats-cert <file>",
        "description": "certificate for the NATS server"
      },
      {
        "flags": "--nats-key <file>",
        "description": "its key"
      },
      {
        "flags": "--replicas <count>",
        "description": "NATS servers that keep what must survive: 3 in a cluster of three"
      },
      {
        "flags": "--runs <folder>",
        "description": "where runs keep their folders"
      },
      {
        "flags": "--kept",
        "description": "those that are kept at the NATS server for any machine"
      },
      {
        "flags": "--forget <run>",
        "description": "removes a run from the NATS server; folders stay"
      },
      {
        "flags": "--json",
        "description": "prints one array"
      }
    ],
    "commands": []
  },
  {
    "name": "cluster",
    "description": "sets up who may use a cluster: keys, and servers that know them",
    "arguments": [],
    "options": [],
    "commands": [
      {
        "name": "init",
        "description": "makes keys for runners and node agents, and the configuration of NATS servers that admit only them",
        "arguments": [
          {
            "term": "[folder]",
            "description": "where they are written; keep it to yourself",
            "default": ".treadle/cluster"
          }
        ],
        "options": [
          {
            "flags": "--server <host:port>",
            "description": "where clients reach a server (default: 127.0.0.1:4222); three for a cluster",
            "default": []
          },
          {
            "flags": "--listen <address>",
            "description": "where servers listen, if that is another, as 0.0.0.0 in a container"
          },
          {
            "flags": "--node <name>",
            "description": "a key that is this node's alone; may be repeated (default: one key for all)",
            "default": []
          },
          {
            "flags": "--subject-prefix <name>",
            "description": "the project's own (default: treadle)"
          },
          {
            "flags": "--store <folder>",
            "description": "of JetStream, on the servers (default: below the folder)"
          },
          {
            "flags": "--tls-cert <file>",
            "description": "the servers' certificate: connections are encrypted"
          },
          {
            "flags": "--tls-key <file>",
            "description": "its key"
          },
          {
            "flags": "--tls-ca <file>",
            "description": "its authority, by which clients know it"
          }
        ],
        "commands": []
      },
      {
        "name": "add-node",
        "description": "makes a key for one more node, and writes the servers' configuration with it",
        "arguments": [
          {
            "term": "<name>",
            "description": "the node's, as of 'treadle node --name'"
          }
        ],
        "options": [
          {
            "flags": "--cluster <folder>",
            "description": "that 'treadle cluster init' has made",
            "default": ".treadle/cluster"
          }
        ],
        "commands": []
      },
      {
        "name": "remove-node",
        "description": "revokes the key that is one node's alone, and writes the servers' configuration without it",
        "arguments": [
          {
            "term": "<name>",
            "description": "the node's"
          }
        ],
        "options": [
          {
            "flags": "--cluster <folder>",
            "description": "that 'treadle cluster init' has made",
            "default": ".treadle/cluster"
          }
        ],
        "commands": []
      }
    ]
  },
  {
    "name": "node",
    "description": "offers this machine to runs that use the same NATS server, until SIGTERM",
    "arguments": [],
    "options": [
      {
        "flags": "--cluster <folder>",
        "description": "servers and keys of a cluster, as 'treadle cluster init' made them",
        "env": "TREADLE_CLUSTER"
      },
      {
        "flags": "--nats <address>",
        "description": "NATS server, as nats://host:4222; several of one cluster with commas",
        "env": "TREADLE_NATS_URL"
      },
      {
        "flags": "--subject-prefix <name>",
        "description": "prefix of NATS subjects; equal for the runs and nodes of one project"
      },
      {
        "flags": "--credentials <file>",
        "description": "credentials or key of NATS; or TREADLE_NATS_USER and TREADLE_NATS_PASSWORD"
      },
      {
        "flags": "--trust <file>",
        "description": "public keys of the runners and nodes that are trusted; required beyond this machine"
      },
      {
        "flags": "--key <file>",
        "description": "this process's own key, if the credentials do not hold it"
      },
      {
        "flags": "--nats-ca <file>",
        "description": "authority of the NATS server's certificate"
      },
      {
        "flags": "--nats-cert <file>",
        "description": "certificate for the NATS server"
      },
      {
        "flags": "--nats-key <file>",
        "description": "its key"
      },
      {
        "flags": "--replicas <count>",
        "description": "NATS servers that keep what must survive: 3 in a cluster of three"
      },
      {
        "flags": "--name <name>",
        "description": "how runs call this node, each '.' of it as '-' (default: the machine's name, made unique)"
      },
      {
        "flags": "--bind <address>",
        "description": "where its workers listen for other nodes (default: 127.0.0.1)"
      },
      {
        "flags": "--advertise <address>",
        "description": "where other nodes dial them, if that is another"
      },
      {
        "flags": "--link-ca <file>",
        "description": "authority of every machine's certificate: links are encrypted"
      },
      {
        "flags": "--link-cert <file>",
        "description": "this machine's certificate"
      },
      {
        "flags": "--link-key <file>",
        "description": "its key"
      },
      {
        "flags": "--allow-interpreter <path>",
        "description": "a program that runs may choose for Treadle's scripts here, besides this Node and the project's Pythons",
        "default": []
      },
      {
        "flags": "--allow-flag <flag>",
        "description": "a flag that runs may give to an interpreter, as --allow-flag=--expose-gc",
        "default": []
      },
      {
        "flags": "--allow-program <path>",
        "description": "a program that workers' configurations may name here, with arguments of theirs; /bin/sh: tools without isolation",
        "default": []
      },
      {
        "flags": "--allow-models <folder>",
        "description": "below it lie models that workers' configurations may name here, besides those below the project",
        "default": []
      },
      {
        "flags": "--allow-env <name>",
        "description": "a variable that runs may set for workers here and what these start, or have read as a server's key",
        "default": []
      },
      {
        "flags": "--labels <k=v>",
        "description": "labels by which runs choose nodes",
        "default": {}
      },
      {
        "flags": "--devices <kind=count>",
        "description": "devices of its own kind, as robot=2",
        "default": {}
      },
      {
        "flags": "--metrics <address>",
        "description": "serves metrics for Prometheus: 9464 on loopback, 0.0.0.0:9464 for others"
      },
      {
        "flags": "--metrics-cert <file>",
        "description": "certificate by which metrics are served over TLS"
      },
      {
        "flags": "--metrics-key <file>",
        "description": "its key"
      },
      {
        "flags": "--metrics-ca <file>",
        "description": "authority of those who may read them"
      },
      {
        "flags": "--otlp <endpoint>",
        "description": "sends spans to an OpenTelemetry collector, as http://127.0.0.1:4318"
      },
      {
        "flags": "--limit <seconds>",
        "description": "ends its workers when the NATS server is away for longer",
        "default": "60"
      },
      {
        "flags": "--drain <seconds>",
        "description": "at SIGTERM, how long its runs have to finish a step and move on",
        "default": "20"
      },
      {
        "flags": "--spares <number>",
        "description": "processes that wait to replace workers that die, while a run is here",
        "default": "2"
      },
      {
        "flags": "--project <folder>",
        "description": "only modules below it are run (default: the project here)"
      }
    ],
    "commands": []
  },
  {
    "name": "status",
    "description": "shows what runs: workers, queues, and which component waits for which; at a NATS server also nodes and devices",
    "arguments": [],
    "options": [
      {
        "flags": "--cluster <folder>",
        "description": "servers and keys of a cluster, as 'treadle cluster init' made them",
        "env": "TREADLE_CLUSTER"
      },
      {
        "flags": "--nats <address>",
        "description": "NATS server, as nats://host:4222; several of one cluster with commas",
        "env": "TREADLE_NATS_URL"
      },
      {
        "flags": "--subject-prefix <name>",
        "description": "prefix of NATS subjects; equal for the runs and nodes of one project"
      },
      {
        "flags": "--credentials <file>",
        "description": "credentials or key of NATS; or TREADLE_NATS_USER and TREADLE_NATS_PASSWORD"
      },
      {
        "flags": "--trust <file>",
        "description": "public keys of the runners and nodes that are trusted; required beyond this machine"
      },
      {
        "flags": "--key <file>",
        "description": "this process's own key, if the credentials do not hold it"
      },
      {
        "flags": "--nats-ca <file>",
        "description": "authority of the NATS server's certificate"
      },
      {
        "flags": "--nats-cert <file>",
        "description": "certificate for the NATS server"
      },
      {
        "flags": "--nats-key <file>",
        "description": "its key"
      },
      {
        "flags": "--replicas <count>",
        "description": "NATS servers that keep what must survive: 3 in a cluster of three"
      },
      {
        "flags": "--runs <folder>",
        "description": "where runs keep their folders; of use without a server"
      },
      {
        "flags": "--json",
        "description": "prints one object"
      }
    ],
    "commands": []
  },
  {
    "name": "logs",
    "description": "prints what the workers of a run have printed, on whatever node",
    "arguments": [
      {
        "term": "[worker]",
        "description": "as rollout/0, or rollout for all of them (default: every worker)"
      }
    ],
    "options": [
      {
        "flags": "--run <id>",
        "description": "id of the run (default: the newest)"
      },
      {
        "flags": "--runs <folder>",
        "description": "where runs keep their folders"
      },
      {
        "flags": "-f, --follow",
        "description": "goes on until Ctrl-C"
      },
      {
        "flags": "--json",
        "description": "one JSON object a line, for machines"
      }
    ],
    "commands": []
  },
  {
    "name": "stop",
    "description": "ends a run on node agents after the step under way, with a checkpoint",
    "arguments": [
      {
        "term": "[run]",
        "description": "id of the run (default: the only one)"
      }
    ],
    "options": [
      {
        "flags": "--cluster <folder>",
        "description": "servers and keys of a cluster, as 'treadle cluster init' made them",
        "env": "TREADLE_CLUSTER"
      },
      {
        "flags": "--nats <address>",
        "description": "NATS server, as nats://host:4222; several of one cluster with commas",
        "env": "TREADLE_NATS_URL"
      },
      {
        "flags": "--subject-prefix <name>",
        "description": "prefix of NATS subjects; equal for the runs and nodes of one project"
      },
      {
        "flags": "--credentials <file>",
        "description": "credentials or key of NATS; or TREADLE_NATS_USER and TREADLE_NATS_PASSWORD"
      },
      {
        "flags": "--trust <file>",
        "description": "public keys of the runners and nodes that are trusted; required beyond this machine"
      },
      {
        "flags": "--key <file>",
        "description": "this process's own key, if the credentials do not hold it"
      },
      {
        "flags": "--nats-ca <file>",
        "description": "authority of the NATS server's certificate"
      },
      {
        "flags": "--nats-cert <file>",
        "description": "certificate for the NATS server"
      },
      {
        "flags": "--nats-key <file>",
        "description": "its key"
      },
      {
        "flags": "--replicas <count>",
        "description": "NATS servers that keep what must survive: 3 in a cluster of three"
      }
    ],
    "commands": []
  },
  {
    "name": "replay",
    "description": "replays the decisions of a recorded run: proves that they are the same, or shows the state at an instant",
    "arguments": [
      {
        "term": "[run]",
        "description": "id of the run (default: the newest); it must have run with observe.record=true"
      }
    ],
    "options": [
      {
        "flags": "--runs <folder>",
        "description": "where runs keep their folders"
      },
      {
        "flags": "--until <instant>",
        "description": "shows the whole state after a step ('12'), at a time since the start ('90s', '1500ms') or at the 'end'"
      },
      {
        "flags": "--json",
        "description": "prints the result as JSON"
      }
    ],
    "commands": []
  },
  {
    "name": "trace",
    "description": "writes the timeline of a run, for a browser and for https://ui.perfetto.dev, or one page of all runs of a pool",
    "arguments": [
      {
        "term": "[run]",
        "description": "id of the run (default: the newest)"
      }
    ],
    "options": [
      {
        "flags": "--runs <folder>",
        "description": "where runs keep their folders"
      },
      {
        "flags": "--pool [history]",
        "description": "a page of all runs that shared devices, from the history of their pool (default: the newest)"
      },
      {
        "flags": "--output <file>",
        "description": "default: trace.json in the run's folder; for a pool, its history's name and .html"
      }
    ],
    "commands": []
  },
  {
    "name": "actions",
    "description": "the action service: tools and rewards of any framework, scheduled one by one on shared resources",
    "arguments": [],
    "options": [],
    "commands": [
      {
        "name": "serve",
        "description": "serves actions over gRPC until SIGTERM; actions that run then end first",
        "arguments": [
          {
            "term": "[config.yaml]",
            "description": "resources, drivers, tenants, limits, TLS; without it this machine's cores, on loopback"
          }
        ],
        "options": [
          {
            "flags": "--listen <address>",
            "description": "host:port or unix:/path, in place of the file's"
          }
        ],
        "commands": []
      },
      {
        "name": "host",
        "description": "offers this machine's cores and sandboxes to an action service elsewhere, until SIGTERM",
        "arguments": [
          {
            "term": "[config.yaml]",
            "description": "drivers, cores, token, TLS; without it all cores, on loopback"
          }
        ],
        "options": [
          {
            "flags": "--listen <address>",
            "description": "host:port or unix:/path, in place of the file's"
          }
        ],
        "commands": []
      },
      {
        "name": "top",
        "description": "shows what an action service does: completion times by kind, cores over time, the last decisions",
        "arguments": [
          {
            "term": "[address]",
            "description": "of the service, host:port or unix:/path",
            "default": "127.0.0.1:50061"
          }
        ],
        "options": [
          {
            "flags": "--interval <seconds>",
            "description": "between two looks",
            "default": "1"
          },
          {
            "flags": "--count <number>",
            "description": "looks, then ends"
          },
          {
            "flags": "--ca <file>",
            "description": "authority of the service's certificate: the connection is encrypted"
          },
          {
            "flags": "--token-file <file>",
            "description": "with the token of a tenant, whose actions are shown"
          },
          {
            "flags": "--plain",
            "description": "plain lines instead of the live view"
          },
          {
            "flags": "--json",
            "description": "prints one object a look"
          }
        ],
        "commands": []
      },
      {
        "name": "profile",
        "description": "measures how a command gains from cores, in a sandbox, and keeps it as JSON",
        "arguments": [
          {
            "term": "<command...>",
            "description": "after '--'; pytest, vitest and node --test are made parallel, others by {parallel}"
          }
        ],
        "options": [
          {
            "flags": "--kind <name>",
            "description": "of the action (default: the program's name)"
          },
          {
            "flags": "--units <list>",
            "description": "core counts, as 1,2,4 (default: doubling up to this machine's)"
          },
          {
            "flags": "--samples <number>",
            "description": "runs of each that count",
            "default": "3"
          },
          {
            "flags": "--tries <number>",
            "description": "runs of each at most, since those during which others use the cores do not count",
            "default": "10"
          },
          {
            "flags": "--tolerance <share>",
            "description": "of the cores' time that others may take",
            "default": "0.1"
          },
          {
            "flags": "--timeout <seconds>",
            "description": "of a run",
            "default": "600"
          },
          {
            "flags": "--folder <folder>",
            "description": "its files are in the sandbox, where the command runs"
          },
          {
            "flags": "--config <file>",
            "description": "of 'actions serve': measures in sandboxes as that service makes them"
          },
          {
            "flags": "--driver <name>",
            "description": "what runs it (default: the file's, or cgroup)",
            "choices": [
              "cgroup",
              "docker",
              "process"
            ]
          },
          {
            "flags": "--image <name>",
            "description": "of the driver 'docker' (default: the file's docker.image)"
          },
          {
            "flags": "--out <file>",
            "description": "default: .treadle/actions/<kind>.json of the project"
          },
          {
            "flags": "--json",
            "description": "prints the profile"
          }
        ],
        "commands": []
      }
    ]
  },
  {
    "name": "plan",
    "description": "finds the best plan for a profiled workflow, shows it beside the best of each mode, and says why",
    "arguments": [
      {
        "term": "<workflow>",
        "description": "folder of the workflow, as workflows/reasoning-grpo"
      }
    ],
    "options": [
      {
        "flags": "--set <key.path=value>",
        "description": "overrides a value of the configuration; may be repeated",
        "default": []
      },
      {
        "flags": "--cluster <folder>",
        "description": "servers and keys of a cluster, as 'treadle cluster init' made them",
        "env": "TREADLE_CLUSTER"
      },
      {
        "flags": "--model <config.json>",
        "description": "estimates components that run a model by its Hugging Face configuration, for --device"
      },
      {
        "flags": "--device <name>",
        "description": "estimates for devices of this kind, by published figures: a100-40g, a100-80g, l40s, h20, h100, h200, b200, mi300x, mi325x"
      },
      {
        "flags": "--prompt-tokens <number>",
        "description": "of a prompt, for estimates",
        "default": "1024"
      },
      {
        "flags": "--response-tokens <number>",
        "description": "of a response, the median, for estimates",
        "default": "4096"
      },
      {
        "flags": "--length-spread <number>",
        "description": "standard deviation of the logarithm of responses' lengths, for estimates",
        "default": "0.8"
      },
      {
        "flags": "--max-tokens <number>",
        "description": "where responses end, for estimates",
        "default": "32768"
      },
      {
        "flags": "--samples <number>",
        "description": "responses to each prompt, for estimates (default: the workflow's groupSize)"
      },
      {
        "flags": "--calibrate <profile>",
        "description": "corrects estimates by this profile, measured with that model and device (default: the newest kept one that says so)"
      },
      {
        "flags": "--profile <file>",
        "description": "default: where 'treadle profile' keeps it"
      },
      {
        "flags": "--config <file>",
        "description": "configuration file (default: config.yaml of the workflow)"
      },
      {
        "flags": "--devices <number>",
        "description": "plans for so many devices instead of those of the configuration"
      },
      {
        "flags": "--what-if <changes>",
        "description": "plans for another cluster beside this one, as 'devices=256', 'batch=512', 'staleness=1' or a device kind, as 'cpu=64'; several with commas; may be repeated",
        "default": []
      },
      {
        "flags": "--beside <workflow|run>",
        "description": "also what it loses and gains where another workflow, or a run by its folder, has the same devices; may be repeated",
        "default": []
      },
      {
        "flags": "--turn <seconds>",
        "description": "of the runs beside each other, as for 'treadle multiplex'",
        "default": "10"
      },
      {
        "flags": "--deadline-ms <number>",
        "description": "ends each search after this long, with the best plan so far and how far it can be from the best",
        "default": "2000"
      },
      {
        "flags": "--save-profile <file>",
        "description": "keeps what the first plan rests on, for 'treadle simulate --profile'"
      },
      {
        "flags": "--html <file>",
        "description": "also as a page to look at"
      },
      {
        "flags": "--json",
        "description": "prints one object on standard output and nothing else there"
      }
    ],
    "commands": []
  },
  {
    "name": "dashboard",
    "description": "serves a page of all runs and of what each does as it happens, until Ctrl-C",
    "arguments": [],
    "options": [
      {
        "flags": "--cluster <folder>",
        "description": "servers and keys of a cluster, as 'treadle cluster init' made them",
        "env": "TREADLE_CLUSTER"
      },
      {
        "flags": "--nats <address>",
        "description": "NATS server, as nats://host:4222; several of one cluster with commas",
        "env": "TREADLE_NATS_URL"
      },
      {
        "flags": "--subject-prefix <name>",
        "description": "prefix of NATS subjects; equal for the runs and nodes of one project"
      },
      {
        "flags": "--credentials <file>",
        "description": "credentials or key of NATS; or TREADLE_NATS_USER and TREADLE_NATS_PASSWORD"
      },
      {
        "flags": "--trust <file>",
        "description": "public keys of the runners and nodes that are trusted; required beyond this machine"
      },
      {
        "flags": "--key <file>",
        "description": "this process's own key, if the credentials do not hold it"
      },
      {
        "flags": "--nats-ca <file>",
        "description": "authority of the NATS server's certificate"
      },
      {
        "flags": "--nats-cert <file>",
        "description": "certificate for the NATS server"
      },
      {
        "flags": "--nats-key <file>",
        "description": "its key"
      },
      {
        "flags": "--replicas <count>",
        "description": "NATS servers that keep what must survive: 3 in a cluster of three"
      },
      {
        "flags": "--runs <folder>",
        "description": "where runs keep their folders (default: runs/ of the project)"
      },
      {
        "flags": "--port <number>",
        "description": "0 is a free one (default: 4800, or a free one where that is taken)"
      },
      {
        "flags": "--host <address>",
        "description": "address to listen on; anyone with the printed address and its token may look",
        "default": "127.0.0.1"
      },
      {
        "flags": "--actions <address>",
        "description": "of an action service, as 127.0.0.1:50061: also shows what it does"
      },
      {
        "flags": "--actions-ca <file>",
        "description": "authority of the service's certificate: the connection is encrypted"
      },
      {
        "flags": "--actions-token-file <file>",
        "description": "with the token of a tenant, whose actions are shown"
      },
      {
        "flags": "--with-parent",
        "description": "ends when its standard input does",
        "isHidden": true
      }
    ],
    "commands": []
  },
  {
    "name": "export",
    "description": "writes the model that a run has trained as a Hugging Face folder, which other tools load",
    "arguments": [
      {
        "term": "[run]",
        "description": "id of the run (default: the newest)"
      }
    ],
    "options": [
      {
        "flags": "--to <folder>",
        "description": "to write; must not be there yet"
      },
      {
        "flags": "--checkpoint <which>",
        "description": "last, best, or the number of its step",
        "default": "last"
      },
      {
        "flags": "--component <name>",
        "description": "whose model",
        "default": "actor"
      },
      {
        "flags": "--dtype <type>",
        "description": "of the weights (default: engine.dtype of the run)",
        "choices": [
          "float32",
          "bfloat16"
        ]
      },
      {
        "flags": "--adapter",
        "description": "the adapter alone, as PEFT loads it, instead of weights with the adapter merged in"
      },
      {
        "flags": "--base <folder>",
        "description": "where the model that was trained is now (default: engine.path of the run)"
      },
      {
        "flags": "--runs <folder>",
        "description": "where runs keep their folders"
      }
    ],
    "commands": []
  },
  {
    "name": "mismatch",
    "description": "shows where sampler and trainer differ in a batch that an alarm has kept, or scores it again with a checkpoint",
    "arguments": [
      {
        "term": "[run]",
        "description": "id of the run (default: the newest)"
      }
    ],
    "options": [
      {
        "flags": "--step <number>",
        "description": "of the alarm (default: the last of which the whole batch is kept)"
      },
      {
        "flags": "--checkpoint <which>",
        "description": "scores the batch again with its weights: last, best, or the number of its step"
      },
      {
        "flags": "--component <name>",
        "description": "whose weights a checkpoint has",
        "default": "actor"
      },
      {
        "flags": "--dtype <type>",
        "description": "that scores (default: engine.dtype of the run)",
        "choices": [
          "float32",
          "bfloat16"
        ]
      },
      {
        "flags": "--device <device>",
        "description": "that scores, such as cpu (default: engine.device of the run)"
      },
      {
        "flags": "--top <count>",
        "description": "tokens to print, the furthest apart first",
        "default": "20"
      },
      {
        "flags": "--json",
        "description": "prints the result as JSON"
      },
      {
        "flags": "--runs <folder>",
        "description": "where runs keep their folders"
      }
    ],
    "commands": []
  },
  {
    "name": "report",
    "description": "writes a run's report as one page: curves, step times, utilisation, configuration",
    "arguments": [
      {
        "term": "[run]",
        "description": "id of the run (default: the newest)"
      }
    ],
    "options": [
      {
        "flags": "--runs <folder>",
        "description": "where runs keep their folders"
      },
      {
        "flags": "--output <file>",
        "description": "default: report.html in the run's folder"
      }
    ],
    "commands": []
  },
  {
    "name": "doctor",
    "description": "says what this machine has and lacks, and how to get it",
    "arguments": [],
    "options": [
      {
        "flags": "--cluster <folder>",
        "description": "servers and keys of a cluster, as 'treadle cluster init' made them",
        "env": "TREADLE_CLUSTER"
      },
      {
        "flags": "--json",
        "description": "prints one object"
      }
    ],
    "commands": []
  },
  {
    "name": "simulate",
    "description": "runs a plan on virtual time, with the times that a profile measured, on any number of devices",
    "arguments": [
      {
        "term": "<workflow|plan.json>",
        "description": "folder of a profiled workflow, or a plan, as in the folder of a run"
      }
    ],
    "options": [
      {
        "flags": "--set <key.path=value>",
        "description": "overrides a value of the configuration; may be repeated",
        "default": []
      },
      {
        "flags": "--cluster <folder>",
        "description": "servers and keys of a cluster, as 'treadle cluster init' made them",
        "env": "TREADLE_CLUSTER"
      },
      {
        "flags": "--config <file>",
        "description": "configuration file (default: config.yaml of the workflow)"
      },
      {
        "flags": "--devices <count>",
        "description": "of each kind; default: as many as were profiled"
      },
      {
        "flags": "--mode <mode>",
        "description": "default: auto",
        "choices": [
          "temporal",
          "spatial",
          "hybrid",
          "auto"
        ]
      },
      {
        "flags": "--max-staleness <steps>",
        "description": "by which steps may overlap; default: 0"
      },
      {
        "flags": "--device-memory-mib <number>",
        "description": "of each device; without it everything fits"
      },
      {
        "flags": "--profile <file>",
        "description": "default: .treadle/profiles/<path of the workflow>.json"
      },
      {
        "flags": "--tail <component=spread,…>",
        "description": "standard deviation of the logarithm of its items' lengths, as rollout=0.8"
      },
      {
        "flags": "--steps <count>",
        "description": "steps to run",
        "default": "10"
      },
      {
        "flags": "--seed <number>",
        "description": "equal seeds give equal runs",
        "default": "0"
      },
      {
        "flags": "--json",
        "description": "prints one object"
      },
      {
        "flags": "--html [file]",
        "description": "writes the timeline as a page (default: <workflow>-simulation.html)"
      }
    ],
    "commands": [
      {
        "name": "actions",
        "description": "tools and rewards on virtual time: scheduled one by one, by fixed degrees, or in a pod a trajectory",
        "arguments": [],
        "options": [
          {
            "flags": "--scenario <name|file>",
            "description": "one of paper, paper-small, or a YAML file",
            "default": "paper-small"
          },
          {
            "flags": "--seed <number>",
            "description": "equal seeds give equal figures"
          },
          {
            "flags": "--pod-rate <number>",
            "description": "pods that the control plane creates a second"
          },
          {
            "flags": "--pods-per-node <count>",
            "description": "at most"
          },
          {
            "flags": "--pod-request <cores>",
            "description": "reserved of a node's cores"
          },
          {
            "flags": "--pod-limit <cores>",
            "description": "that a pod may use"
          },
          {
            "flags": "--pod-start <seconds>",
            "description": "from its creation until it runs"
          },
          {
            "flags": "--all-nodes",
            "description": "simulates every node, not as many as have 256 trajectories"
          },
          {
            "flags": "--json",
            "description": "prints one object"
          },
          {
            "flags": "--html [file]",
            "description": "draws the curves as a page (default: actions-simulation.html)"
          }
        ],
        "commands": []
      },
      {
        "name": "rollout",
        "description": "multi-turn rollouts on virtual time: schedulers, placements and degrees, with the predictor in the loop",
        "arguments": [],
        "options": [
          {
            "flags": "--scenario <name|file>",
            "description": "one of small, grid, paper, one, or a YAML file",
            "default": "small"
          },
          {
            "flags": "--seed <number>",
            "description": "equal seeds give equal figures"
          },
          {
            "flags": "--parts [seeds]",
            "description": "all parts on, and each left out, with the shipped predictor; beside what perfect predictions reach and what no way exceeds; over so many seeds from --seed on (default: 2)"
          },
          {
            "flags": "--json",
            "description": "prints one object"
          }
        ],
        "commands": []
      },
      {
        "name": "multiplex",
        "description": "several runs on the same devices on virtual time: by leases, by whole steps, on parts, one by one",
        "arguments": [],
        "options": [
          {
            "flags": "--scenario <name|file>",
            "description": "one of small, grid, exact, bounds, beside, beside-64, deaths, or a YAML file",
            "default": "small"
          },
          {
            "flags": "--seed <number>",
            "description": "equal seeds give equal figures"
          },
          {
            "flags": "--json",
            "description": "prints one object"
          }
        ],
        "commands": []
      }
    ]
  },
  {
    "name": "solve",
    "description": "answers one planning problem: a JSON object on standard input, one on standard output",
    "arguments": [
      {
        "term": "<problem>",
        "description": "one of plan, place, allocate, rollout, arrange, actions, multiplex"
      }
    ],
    "options": [
      {
        "flags": "--method <name>",
        "description": "the algorithm; an unknown name lists those there are"
      },
      {
        "flags": "--order <order>",
        "description": "of allocate: whether degrees are sorted",
        "choices": [
          "sorted",
          "any"
        ]
      },
      {
        "flags": "--deadline-ms <number>",
        "description": "stop after this long with the best answer so far and a proven bound"
      },
      {
        "flags": "--seed <number>",
        "description": "of methods that draw random numbers"
      }
    ],
    "commands": []
  },
  {
    "name": "bench",
    "description": "measures Treadle on this machine, each figure next to the same work done another way; some minutes",
    "arguments": [],
    "options": [
      {
        "flags": "--json",
        "description": "prints one array"
      },
      {
        "flags": "--only <names>",
        "description": "comma list of measurements; an unknown name lists them"
      }
    ],
    "commands": []
  }
];
