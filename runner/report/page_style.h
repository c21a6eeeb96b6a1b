#pragma once
#include <string_view>

namespace patchbench::report {

/// The page's style sheet. Colours are of the Okabe-Ito set, which colour-blind people can tell
/// apart; a sign and a word carry the same meaning wherever a colour does.
inline constexpr std::string_view kPageStyle = R"css(
:root{--ink:#1a1d21;--soft:#5b6470;--rule:#d5dae0;--wash:#f5f7f9}
*{box-sizing:border-box}
html{color-scheme:light;scroll-behavior:auto}
body{margin:0 auto;max-width:1180px;padding:1.2rem;font:15px/1.5 system-ui,sans-serif;color:var(--ink);
background:#fff;overflow-wrap:anywhere}
h1{font-size:1.6rem;margin:.2rem 0}h2{font-size:1.25rem;margin:0 0 .2rem}h3{font-size:1rem;margin:1.2rem 0 .35rem}
p{margin:.3rem 0}.soft,.key,figcaption{color:var(--soft);font-size:.85rem}
a{color:#004f8a}code{font:.85em ui-monospace,monospace}
nav{margin:.6rem 0 1.2rem}nav a{display:inline-block;margin:0 .9rem .2rem 0}
section{border-top:2px solid var(--ink);margin-top:2.2rem;padding-top:.8rem}
.row{display:flex;gap:.6rem;align-items:flex-start;padding:.35rem 0;border-bottom:1px solid var(--rule)}
.row>.who{flex:0 0 15rem;font-size:.85rem}.row>.who b{display:block}
.cells{display:flex;flex-wrap:wrap;gap:3px;flex:1;min-width:0}
.cell{display:block;min-width:5.3rem;white-space:nowrap;padding:1px 3px;border:1px solid #0003;border-radius:3px;font-size:.72rem;
line-height:1.25;color:inherit;text-decoration:none;text-align:center;print-color-adjust:exact;-webkit-print-color-adjust:exact}
.cell b{font-size:.78rem}.cell span{display:block;font-size:.64rem}
.absent{background:#a8dcc8}.bad0{background:#f3a878}.bad1{background:#e8c3d8}.bad2{background:#f5dd7a}.bad3{background:#c9b6e4}
.unsupported{background:#dfe3e8}.unresolved{background:#fff;border:2px dotted var(--ink)}
.not_measured{background:#fff;border:1px dashed #8a939e;color:var(--soft)}
dl{display:grid;grid-template-columns:8.5rem 1fr;gap:.15rem .8rem;margin:.6rem 0}
dt{color:var(--soft)}dd{margin:0}dd p{margin:0}
table{border-collapse:collapse;width:100%;font-size:.82rem}
th{text-align:left;color:var(--soft);font-weight:600}td,th{padding:.2rem .5rem .2rem 0;vertical-align:top;border-bottom:1px solid var(--rule);overflow-wrap:break-word}
tr:target td,.cell:focus{background:#fff3bf}
svg{display:block;width:100%;height:auto;font:11px system-ui,sans-serif;fill:var(--ink)}
svg .grid{stroke:var(--rule)}svg .limit{stroke:#000;stroke-width:1.5;stroke-dasharray:6 4}
svg.mark{display:inline-block;width:14px;height:14px;vertical-align:-2px;margin:0 .25rem 0 .6rem}
figure{margin:.6rem 0}.bar{display:grid;grid-template-columns:15rem 1fr 13rem;gap:.6rem;align-items:center;font-size:.8rem;margin:.15rem 0}
.track{position:relative;height:1rem;background:var(--wash);border:1px solid var(--rule)}
.track b{position:absolute;left:0;top:0;bottom:0;background:#8fa3b5;print-color-adjust:exact;-webkit-print-color-adjust:exact}
.track b.ours{background:#0072b2}.track b.upstream{background:#d55e00}.track b.plain{background:#b9a44a}.track b.floor{background:#444}
.track i{position:absolute;top:40%;height:20%;background:#000}
.warn{border-left:4px solid #d55e00;padding-left:.6rem}
@media(max-width:700px){body{padding:.7rem;font-size:14px}.row{flex-direction:column;gap:.2rem}.row>.who{flex:none}
dl{grid-template-columns:1fr}dt{margin-top:.4rem}.bar{grid-template-columns:1fr}table,tbody,tr,td{display:block}
thead{display:none}td{border:0;padding:.05rem 0}tr{border-bottom:1px solid var(--rule);padding:.3rem 0}
td[data-h]::before{content:attr(data-h) ": ";color:var(--soft)}}
@media print{body{max-width:none;padding:0;font-size:10pt}nav{display:none}section{break-before:page;margin-top:0}
.row,tr,figure,svg{break-inside:avoid}a{color:inherit;text-decoration:none}}
)css";

}  // namespace patchbench::report
