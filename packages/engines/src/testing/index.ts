export { type Script, ScriptedEngine } from "./scripted-engine.ts";
