// What the modules of this page share. Each is a plain script with a block of its own: it takes what it needs from `pg` and adds
// what it offers. So the same files work served and, one after the other, inside one file that is opened from a disk.

"use strict";
const pg = {
  ...{ h: preact.h, render: preact.render, Fragment: preact.Fragment },
  ...preactHooks,
  html: htm.bind(preact.h),
  Plot: uPlot,
};
