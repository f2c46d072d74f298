'use strict';
const data = JSON.parse(document.getElementById('data').textContent);
const titles = {loss: 'Loss', evaluation: 'Evaluation', throughput: 'Throughput', 'loss scale': 'Scale of the loss', 'steps left out': 'Steps left out', time: 'Time of a step on rank 0', memory: 'Resident memory of the process'};
const el = (name, attributes, ...children) => {
  const node = document.createElement(name);
  Object.entries(attributes || {}).forEach(([key, value]) => node.setAttribute(key, value));
  node.append(...children);
  return node;
};
const css = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const colour = i => css('--c' + i % 8);
const figure = v => v == null ? '–' : Math.abs(v) >= 1e12 ? v.toExponential(2) : Math.abs(v) >= 1000 ? Math.round(v).toLocaleString('en') : String(+v.toPrecision(4));
const bytes = v => v >= 1 << 30 ? figure(v / (1 << 30)) + ' GiB' : v >= 1 << 20 ? figure(v / (1 << 20)) + ' MiB' : figure(v / 1024) + ' KiB';

function header() {
  document.title = data.title;
  document.getElementById('title').textContent = data.title;
  const written = new Date(data.written);
  const state = document.getElementById('state');
  const silent = data.running && Date.now() - written > 6000 * data.interval;
  const cut = !data.running && data.early;
  state.className = cut ? 'cut' : silent ? 'silent' : '';
  state.append(el('b', {}, cut ? 'ended early' : !data.running ? 'ended' : silent ? 'nothing new for a while' : 'running'),
    ` · ${data.steps.toLocaleString('en')} ${data.steps === 1 ? 'step' : 'steps'} · written ${written.toLocaleString('en-GB')}`);
  const facts = {...data.facts};
  if (data.mesh) facts.mesh = data.mesh;
  Object.entries(facts).forEach(([name, value]) =>
    document.getElementById('facts').append(el('div', {class: 'fact'}, el('b', {}, value), name)));
}

/** The running mean that the eye would draw, for a curve of many points. */
function smooth(values) {
  let sum = 0, weight = 0; // of what there is: the first value counts no more than others
  return values.map(v => {
    if (v != null) {
      sum = 0.94 * sum + 0.06 * v;
      weight = 0.94 * weight + 0.06;
    }
    return weight ? sum / weight : null;
  });
}

const axis = () => ({stroke: css('--quiet'), grid: {stroke: css('--line'), width: 1}, ticks: {stroke: css('--line')}, font: '11px system-ui, sans-serif'});

function draw(card, table, series, height) {
  const plot = new uPlot({
    width: Math.max(260, card.clientWidth - 34), height, series: [{label: 'step'}, ...series],
    scales: {x: {time: false}},
    axes: [axis(), {...axis(), size: (u, labels) => 20 + 7 * Math.max(6, ...(labels || []).map(t => t.length)), values: (u, ticks) => ticks.map(figure)}],
    cursor: {drag: {x: true, y: false}},
  }, table, card);
  new ResizeObserver(() => plot.setSize({width: Math.max(260, card.clientWidth - 34), height})).observe(card);
}

function lines(card, curves) {
  const many = curves.length === 1 && curves[0].y.length > 60;
  const drawn = many ? [...curves, {...curves[0], y: smooth(curves[0].y), name: 'running mean', bold: true}] : curves;
  const table = drawn.length > 1 ? uPlot.join(drawn.map(c => [c.x, c.y])) : [drawn[0].x, drawn[0].y];
  draw(card, table, drawn.map((c, i) => ({
    label: c.name, stroke: many && i === 0 ? css('--quiet') + '80' : colour(many ? 0 : i), width: c.bold || !many ? 2 : 1, spanGaps: true,
    points: {show: c.y.length < 30, size: 5}, value: (u, v) => v == null ? '' : figure(v) + (c.unit ? ' ' + c.unit : ''),
  })), 230);
}

/** What a step's time goes to, one above the other. */
function stacked(card, curves) {
  const steps = curves.find(c => c.name === 'step').x;
  const parts = curves.filter(c => c.name !== 'step');
  const at = (curve, x) => { // the point that the step is in
    const i = curve.x.findIndex(end => end >= x);
    return i < 0 ? curve.y[curve.y.length - 1] || 0 : curve.y[i] || 0;
  };
  const raw = parts.map(part => steps.map(x => at(part, x)));
  const sums = steps.map(() => 0);
  const heights = raw.map(values => values.map((v, i) => sums[i] += v));
  const order = parts.map((_, i) => i).reverse(); // the highest is behind the others
  draw(card, [steps, ...order.map(i => heights[i])], order.map(i => ({
    label: parts[i].name, stroke: colour(kinds.indexOf(parts[i].name)), fill: colour(kinds.indexOf(parts[i].name)), width: 0,
    points: {show: false}, value: (u, v, s, k) => k == null ? '' : figure(raw[i][k]) + ' ms',
  })), 230);
}

const kinds = [...new Set([...data.curves.filter(c => c.chart === 'time' && c.name !== 'step').map(c => c.name), ...data.ranks.flatMap(r => Object.keys(r.times))])];

function charts() {
  const place = document.getElementById('charts');
  place.replaceChildren();
  Object.keys(titles).forEach(chart => {
    const curves = data.curves.filter(c => c.chart === chart && c.x.length);
    if (!curves.length) return;
    const mean = Math.max(...curves.map(c => c.mean));
    const card = el('div', {class: 'card'}, el('h2', {}, titles[chart] + (curves[0].unit ? `, ${curves[0].unit}` : '')));
    if (mean > 1) card.append(el('p', {class: 'quiet'}, `a point is the mean of ${mean} values`));
    const none = curves.map(c => [c.name, c.y.filter(v => v == null).length]).filter(([, n]) => n);
    if (none.length && chart !== 'time') card.append(el('p', {class: 'alarm'}, none.map(([name, n]) =>
      `${name}: ${n.toLocaleString('en')} ${n > 1 ? 'points are' : 'point is'} not a finite number (NaN or infinite) and not drawn`).join('; ')));
    place.append(card);
    (chart === 'time' ? stacked : lines)(card, curves);
  });
}

function legend(names, colourOf) {
  return el('div', {class: 'legend'}, ...names.map((name, i) =>
    el('span', {}, el('i', {class: 'swatch', style: `background:${colourOf(i)}`}), name)));
}

function ranks() {
  if (!data.ranks.length) return;
  const place = document.getElementById('ranks');
  const longest = Math.max(...data.ranks.map(r => Object.values(r.times).reduce((a, b) => a + b, 0)), 1e-9);
  const used = kinds.filter(kind => data.ranks.some(r => r.times[kind] > 0.0005 * longest));
  place.replaceChildren(el('h2', {}, 'Ranks of this process'),
    el('p', {class: 'quiet'}, 'What each holds, and where its time goes in a step, the mean of all steps. Operations of ranks in other processes include waiting for them.'),
    legend(used, i => `var(--c${kinds.indexOf(used[i]) % 8})`),
    el('div', {class: 'scrolls'}, el('table', {},
      el('thead', {}, el('tr', {}, ...['rank', 'weights', 'optimizer state', 'ms a step', 'time'].map(t => el('th', {}, t)))),
      el('tbody', {}, ...data.ranks.map(r => {
        const sum = Object.values(r.times).reduce((a, b) => a + b, 0);
        const bar = el('div', {class: 'bar'}, ...used.map(kind => el('i', {
          style: `width:${100 * (r.times[kind] || 0) / longest}%;background:var(--c${kinds.indexOf(kind) % 8})`, title: `${kind}: ${figure(r.times[kind] || 0)} ms`})));
        return el('tr', {}, el('th', {}, String(r.rank)), el('td', {}, bytes(r.weights)), el('td', {}, bytes(r.state)), el('td', {}, figure(sum)), el('td', {class: 'wide'}, bar));
      })))));
}

function shards() {
  const cut = data.parameters.filter(p => p.axis >= 0);
  if (!data.parameters.length) return;
  const place = document.getElementById('shards');
  const size = cut.length ? cut[0].ranges.length : 1;
  const names = [...Array(size).keys()].map(r => 'rank ' + r);
  place.replaceChildren(el('h2', {}, 'Parameters'),
    ...(cut.length ? [el('p', {class: 'quiet'}, 'Which part of the cut axis each rank of the tensor-parallel group has.'), legend(names, i => `var(--c${i % 8})`)] : []),
    el('div', {class: 'scrolls'}, el('table', {},
      el('thead', {}, el('tr', {}, ...['parameter', 'shape', 'axis', 'parts'].map(t => el('th', {}, t)))),
      el('tbody', {}, ...data.parameters.map(p => {
        const part = p.axis < 0 ? 'whole on every rank' : el('div', {class: 'part'}, ...p.ranges.map((ranges, r) =>
          el('div', {class: 'bar', title: `rank ${r}: ${ranges.map(x => x.join(' to ')).join(', ')}`}, ...ranges.map(([a, b]) =>
            el('i', {class: 'cut', style: `left:${100 * a / p.length}%;width:${100 * (b - a) / p.length}%;background:var(--c${r % 8})`})))));
        return el('tr', {}, el('th', {}, p.name), el('td', {}, p.shape), el('td', {}, p.axis < 0 ? '' : String(p.axis)), el('td', {class: 'wide quiet'}, part));
      })))));
}

header();
charts();
ranks();
shards();
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', charts);
