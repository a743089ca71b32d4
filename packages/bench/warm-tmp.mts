import { solvePlan } from "@treadle/planner";
import { benchProblem } from "/work/main/packages/bench/src/planner.ts";
for (const [nodes,devices,graph,rounds] of [[3,1024,"chain",12],[6,1024,"chain",12],[6,1024,"dag",8],[10,1024,"chain",6],[10,1024,"dag",3]] as const) {
const times:number[]=[]; let un=0, c=0;
for (let round=0; round<rounds; round++) for (let seed=1; seed<=9; seed++) {
    const t=performance.now(); const r:any = solvePlan(benchProblem({nodes,devices,graph,seed}),{method:"fast",nowMs:()=>performance.now()});
    if(round>=rounds/2) times.push(performance.now()-t); if(round===rounds-1){ un+=r.alternatives.filter((a:any)=>a.proven===false).length; c+=r.stats.candidates;}
}
times.sort((a,b)=>a-b); console.log(nodes,graph,"median",times[times.length>>1].toFixed(1),"mean",(times.reduce((a,b)=>a+b,0)/times.length).toFixed(1),"unproven",un,"cand",c);
}
