"""How a report looks: one calm column, light and dark, on paper too."""

STYLE = """
:root{color-scheme:light dark;--paper:#fdfdfb;--panel:#fff;--ink:#1e2328;--soft:#5d666f;--rule:#dfe2e3;--grid:#eceeee;
--good:#0b6b4f;--bad:#a8321f;--s0:#0b5cab;--s1:#c2500a;--s2:#0f7a5a;--s3:#8a3b94;--s4:#7a6200;--s5:#5b6470}
@media (prefers-color-scheme:dark){:root{--paper:#14171a;--panel:#1b1f23;--ink:#e4e7e9;--soft:#9aa4ad;--rule:#30363c;
--grid:#272c31;--good:#63d0a5;--bad:#ff9a85;--s0:#6db3f8;--s1:#ffa25e;--s2:#5fd3ab;--s3:#d9a3e4;--s4:#e2c65e;--s5:#b4bdc6}
}
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);
font:16px/1.55 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
main{max-width:1180px;margin:0 auto;padding:2.5rem 1.25rem 4rem}
h1{font-size:1.9rem;line-height:1.2;margin:0;font-weight:650;letter-spacing:-.01em;overflow-wrap:anywhere}
h2{font-size:1.25rem;margin:3rem 0 .25rem;font-weight:650}
h3{font-size:.95rem;margin:0 0 .25rem;font-weight:600}
h4{font-size:.75rem;margin:0 0 .5rem;color:var(--soft);text-transform:uppercase;letter-spacing:.08em;font-weight:600}
p{margin:.4rem 0}
.about,.empty,figcaption,.counts,.cut,small{color:var(--soft)}
.about{max-width:46rem}
.binned{margin-top:2.5rem}
figcaption,.counts,.cut,small{font-size:.82rem}
.state{color:var(--soft);margin:.35rem 0 1.5rem}
.facts{display:grid;grid-template-columns:repeat(auto-fill,minmax(10rem,1fr));gap:.75rem 1.5rem;margin:1.25rem 0 0;
font-size:.9rem}
.facts .versions,.facts .learning{grid-column:span 2}
.tables{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,33rem),1fr));gap:0 3.5rem}
.tables section{min-width:0}
.facts dt{font-size:.78rem;color:var(--soft)}
.facts dd{margin:0;overflow-wrap:anywhere}
.scroll{overflow-x:auto}
table{border-collapse:collapse;font-size:.9rem;margin:.75rem 0;font-variant-numeric:tabular-nums;width:100%}
th,td{text-align:right;padding:.45rem 0 .45rem .9rem;border-bottom:1px solid var(--rule);white-space:nowrap}
th:first-child,td:first-child{text-align:left;padding-left:0;min-width:6rem;white-space:normal;font-weight:400}
thead th{white-space:normal;font-size:.78rem;color:var(--soft);font-weight:500;vertical-align:bottom}
td.after{font-weight:650;font-size:1.08rem}
td.change{color:var(--soft)}
.alarms{overflow-wrap:anywhere;border-left:3px solid var(--bad);padding:.1rem 0 .1rem .9rem;margin:1rem 0}
.lost{color:var(--bad);font-weight:650}
.charts{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,330px),1fr));gap:1.25rem;margin-top:1rem}
figure{margin:0;min-width:0;padding:.9rem 1rem;background:var(--panel);border:1px solid var(--rule);border-radius:8px;
break-inside:avoid}
figure>svg{display:block;width:100%;height:auto}
svg text{font:13px system-ui,sans-serif;fill:var(--soft);font-variant-numeric:tabular-nums}
.grid{stroke:var(--grid);fill:none}
.axis{stroke:var(--soft);fill:none}
.chance{stroke:var(--soft);fill:none;stroke-width:1;stroke-dasharray:1 3}
.line{fill:none;stroke:var(--c);stroke-width:2;stroke-linejoin:round}
.mark{fill:var(--c);stroke:var(--panel);stroke-width:1}
.s0{--c:var(--s0)}.s1{--c:var(--s1)}.s2{--c:var(--s2)}.s3{--c:var(--s3)}.s4{--c:var(--s4)}.s5{--c:var(--s5)}
.s1 .line{stroke-dasharray:7 4}.s2 .line{stroke-dasharray:2 3}.s3 .line{stroke-dasharray:9 3 2 3}
.s4 .line{stroke-dasharray:14 4}.s5 .line{stroke-dasharray:4 2 1 2 1 2}
.alarm-line{stroke:var(--bad);fill:none;stroke-dasharray:3 3;opacity:.7}
.alarm-bar{fill:var(--bad)}
.named{display:inline-block;margin-right:.6rem}
svg .alarm-text,.alarm-letter{fill:var(--bad);color:var(--bad);font-weight:700}
.legend{list-style:none;margin:.35rem 0 0;padding:0;display:flex;flex-wrap:wrap;gap:.1rem 1rem;font-size:.82rem;
color:var(--soft)}
.legend li{min-width:0;overflow-wrap:anywhere}
.legend b{color:var(--ink);font-weight:600;font-variant-numeric:tabular-nums}
.swatch{width:32px;height:12px;vertical-align:-1px}
details{border-top:1px solid var(--rule)}
details:last-of-type{border-bottom:1px solid var(--rule)}
summary{cursor:pointer;padding:.7rem 0;overflow:hidden}
.question{font-weight:600;white-space:pre-wrap;overflow-wrap:anywhere}
.pair{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,24rem),1fr));gap:1rem 1.5rem;
padding-bottom:1.5rem}
.debate{min-width:0}
.turn{background:var(--panel);border:1px solid var(--rule);border-radius:8px;padding:.6rem .8rem;margin:0 0 .7rem;
overflow:hidden;
break-inside:avoid}
.turn.unreadable{border-style:dashed}
.turn header,.turn footer{display:flex;flex-wrap:wrap;gap:.1rem .8rem;font-size:.82rem;color:var(--soft);
align-items:baseline}
.turn header b{color:var(--ink);font-size:.9rem}
.turn footer{border-top:1px solid var(--grid);padding-top:.35rem;font-variant-numeric:tabular-nums}
.turn footer span:first-child{margin-right:auto;color:var(--ink)}
.turn dl{margin:.35rem 0;display:grid;grid-template-columns:5.6rem minmax(0,1fr);gap:.2rem .6rem;font-size:.92rem}
.turn dt{color:var(--soft);font-size:.8rem;padding-top:.1rem}
.turn dd,.raw{margin:0;white-space:pre-wrap;overflow-wrap:anywhere;overflow:hidden}
.raw{font:.82rem/1.45 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;margin:.35rem 0}
bdi{unicode-bidi:isolate}
.cut{font-style:italic;display:block}
.error,.badge.wrong{color:var(--bad)}
.error{font-size:.86rem;margin:.2rem 0}
.badge{margin-left:auto}
.badge.right{color:var(--good)}
.end{margin-top:3rem;color:var(--soft);font-size:.82rem}
@media (max-width:40rem){main{padding:1.5rem 1rem 3rem}h1{font-size:1.5rem}th,td{padding:.4rem 0 .4rem .6rem}
.facts{grid-template-columns:1fr 1fr}
.turn dl{grid-template-columns:minmax(0,1fr);gap:0}.turn dt{padding-top:.35rem}}
@media print{:root{color-scheme:light;--paper:#fff;--panel:#fff;--ink:#000;--soft:#444;--rule:#bbb;--grid:#ddd;
--good:#064;--bad:#811;
--s0:#0b5cab;--s1:#c2500a;--s2:#0f7a5a;--s3:#8a3b94;--s4:#7a6200;--s5:#5b6470}
body{font-size:10.5pt}main{max-width:none;padding:0}.charts{grid-template-columns:1fr 1fr}
.pair{grid-template-columns:1fr 1fr}
details::details-content{content-visibility:visible;block-size:auto}summary,h4,.debate>.counts{break-after:avoid}h2{break-after:avoid}}
"""
