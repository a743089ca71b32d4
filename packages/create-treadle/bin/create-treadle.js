#!/usr/bin/env node
// `npm create treadle [folder] [-- --template …]` is `treadle init`.
process.argv.splice(2, 0, "init");
await import("treadle/command");
