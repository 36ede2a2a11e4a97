'use strict';
// Plots as inline SVG, as wide as their container. What they show is up to charts.js.

const SVG = 'http://www.w3.org/2000/svg';

function el(name, attributes, ...children) {
  const node = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes || {})) node.setAttribute(key, value);
  node.append(...children);
  return node;
}

function html(name, className, ...children) {
  const node = document.createElement(name);
  if (className) node.className = className;
  node.append(...children);
  return node;
}

// number writes x with a useful number of digits.
function number(x) {
  const a = Math.abs(x);
  if (a === 0) return '0';
  if (a < 0.01) return x.toPrecision(2);
  if (a < 10) return String(+x.toFixed(2));
  if (a < 100) return String(+x.toFixed(1));
  return x < 1e6 ? String(Math.round(x)) : x.toPrecision(3);
}

const duration = ms => Math.abs(ms) >= 10000 ? number(ms / 1000) + ' s' : number(ms) + ' ms';
const color = name => `var(--${name})`;

// niceStep is 1, 2 or 5 times a power of ten: about that many steps span the axis.
function niceStep(span, about) {
  const raw = span / Math.max(about, 1), power = 10 ** Math.floor(Math.log10(raw));
  return power * [1, 2, 5, 10].find(m => m * power >= raw * 0.999);
}

// Scales map a value to 0..1 and have ticks: [value, label].
function linear(low, high, label) {
  if (!(high > low)) high = low + 1;
  return {
    at: v => (v - low) / (high - low),
    ticks(about) {
      const step = niceStep(high - low, about), out = [];
      for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9; k++) out.push([k * step, label(k * step)]);
      return out;
    },
  };
}

function logarithmic(low, high, label) {
  const a = Math.log10(low), b = Math.log10(high > low ? high : low * 10);
  return {
    at: v => (Math.log10(Math.max(v, low)) - a) / (b - a),
    ticks(about) {
      for (const multiples of [[1, 2, 5], [1, 3], [1]]) {
        const out = [];
        for (let k = Math.floor(a); k <= Math.ceil(b); k++) {
          for (const m of multiples) {
            const v = m * 10 ** k, t = this.at(v);
            if (Math.log10(v) >= a - 1e-9 && t <= 1 + 1e-9) out.push([v, label(v)]);
          }
        }
        if (out.length <= about + 2 || multiples.length === 1) return out;
      }
    },
  };
}

// percentileScale is HdrHistogram's: it spreads quantiles by the share above them, so
// that p90 to p99 is as wide as p99 to p99.9.
function percentileScale(highest) {
  const place = q => -Math.log10(Math.max(1 - q, 1e-6));
  const end = Math.max(place(highest), 1);
  const marks = [[0, '0'], [0.5, '50%'], [0.9, '90%'], [0.99, '99%'], [0.999, '99.9%'], [0.9999, '99.99%']];
  return { at: q => place(q) / end, ticks: () => marks.filter(m => place(m[0]) <= end + 1e-9) };
}

// fit makes a scale for values: logarithmic if they span more than a factor of 20.
function fit(values, label, kind) {
  const positive = values.filter(v => v > 0);
  const high = positive.length ? Math.max(...positive) : 1, low = positive.length ? Math.min(...positive) : 0.1;
  if (kind !== 'linear' && high / low > 20) return logarithmic(low * 0.8, high * 1.15, label);
  return linear(0, high * 1.06, label);
}

const tip = html('div');
tip.id = 'tip';
tip.hidden = true;

// showTip shows rows [name, value, colour] near the pointer.
function showTip(event, title, rows) {
  tip.replaceChildren(html('b', '', title), ...rows.map(([name, value, swatch]) => {
    const row = html('div', '', html('span', '', name), html('span', '', value));
    if (swatch) row.firstChild.style.color = swatch;
    return row;
  }));
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  let x = event.clientX + 14, y = event.clientY + 14;
  if (x + box.width > innerWidth - 8) x = event.clientX - box.width - 14;
  if (y + box.height > innerHeight - 8) y = event.clientY - box.height - 14;
  tip.style.left = Math.max(x, 4) + 'px';
  tip.style.top = Math.max(y, 4) + 'px';
}
const hideTip = () => { tip.hidden = true; };

function hover(node, show, leave) {
  node.addEventListener('pointermove', show);
  node.addEventListener('pointerdown', show);
  node.addEventListener('pointerleave', () => { hideTip(); if (leave) leave(); });
}

function legendOf(entries) {
  const list = html('ul', 'legend');
  for (const e of entries) {
    const mark = el('svg', { class: e.block ? 'block' : '', viewBox: e.block ? '0 0 12 10' : '0 0 20 10', 'aria-hidden': 'true' }, e.block
      ? el('rect', { width: 12, height: 10, fill: color(e.color) })
      : el('line', { x1: 0, x2: 20, y1: 5, y2: 5, stroke: color(e.color), 'stroke-width': 2, 'stroke-dasharray': e.dash || 'none' }));
    list.append(html('li', '', mark, e.name));
  }
  return list;
}

const widthOf = figure => Math.max(Math.floor(figure.clientWidth), 280);

// textWidth is a label's width in the style sheet's font.
const pen = document.createElement('canvas').getContext('2d');
function textWidth(text) {
  pen.font = '11.5px system-ui, -apple-system, "Segoe UI", "Liberation Sans", sans-serif';
  return pen.measureText(text).width;
}

// placed gives each mark's name a level above the plot and a side of its line. No name
// covers another name or another mark's line, which reaches up to its own level, and all
// stay within the width. It tries few levels first. Names that do not fit after many
// tries appear only as their lines' titles.
function placed(marks, px, width) {
  const all = marks.slice().sort((a, b) => a.x - b.x).map(({ x, name }) => ({ name, at: px(x), wide: textWidth(name) + 10 }));
  const crosses = (line, name) => line.at > name.left && line.at < name.right && line.level >= name.level;
  const apart = (a, b) => (a.level !== b.level || a.right < b.left || b.right < a.left) && !crosses(a, b) && !crosses(b, a);
  let tries = 20000;
  const place = (taken, levels) => {
    if (taken.length === all.length) return taken;
    const { name, at, wide } = all[taken.length];
    for (let level = 0; level < levels && tries-- > 0; level++) {
      for (const flipped of [false, true]) {
        const m = { name, at, flipped, level, left: flipped ? at - wide : at + 1, right: flipped ? at - 1 : at + wide };
        if (m.left < 0 || m.right > width || !taken.every(t => apart(m, t))) continue;
        const whole = place([...taken, m], levels);
        if (whole) return whole;
      }
    }
    return null;
  };
  for (let levels = 1; levels <= all.length; levels++) {
    const whole = place([], levels);
    if (whole) return whole;
  }
  return all.map(m => ({ name: m.name, at: m.at, level: 0, nameless: true }));
}

// frame empties a figure except its caption, and adds an SVG.
function frame(figure, width, height, legend) {
  for (const child of [...figure.children]) if (child.tagName !== 'FIGCAPTION') child.remove();
  const caption = figure.querySelector('figcaption');
  const svg = el('svg', { viewBox: `0 0 ${width} ${height}`, role: 'img', 'aria-label': caption ? caption.textContent.trim() : '' });
  if (legend.length > 1) figure.append(legendOf(legend));
  figure.append(svg);
  return svg;
}

// lineChart draws chart.series, each {name, color, dash, points: [[x, y, hollow, note]]};
// a null y breaks the line. marks {x, name} are vertical lines, bounds {y, name}
// horizontal ones, shades {from, to, name} ranges of x.
function lineChart(figure, chart) {
  const pad = { left: 58, right: 14, top: 18, bottom: 38 }, plotHeight = chart.height || 214;
  const width = widthOf(figure), w = width - pad.left - pad.right;
  const marks = placed(chart.marks || [], x => pad.left + w * chart.x.at(x), width);
  pad.top += 16 * marks.reduce((most, m) => Math.max(most, m.level + 1), 0);
  const height = pad.top + plotHeight + pad.bottom, h = plotHeight;
  const bounds = (chart.bounds || []).filter(b => chart.y.at(b.y) >= 0 && chart.y.at(b.y) <= 1);
  const svg = frame(figure, width, height, chart.series.concat(bounds.map(b => ({ name: b.name, color: 'bad', dash: '6 3' }))));
  const px = x => pad.left + w * chart.x.at(x), py = y => pad.top + h * (1 - chart.y.at(y));

  for (const s of chart.shades || []) {
    svg.append(el('rect', { class: 'shade', x: px(s.from), y: pad.top, width: Math.max(px(s.to) - px(s.from), 0), height: h }, el('title', {}, s.name)));
  }
  for (const [v, label] of chart.y.ticks(5)) {
    svg.append(el('line', { class: 'grid', x1: pad.left, x2: pad.left + w, y1: py(v), y2: py(v) }),
      el('text', { x: pad.left - 7, y: py(v) + 4, 'text-anchor': 'end' }, label));
  }
  for (const [v, label] of chart.x.ticks(Math.floor(w / 70))) {
    svg.append(el('line', { class: 'axis', x1: px(v), x2: px(v), y1: pad.top + h, y2: pad.top + h + 4 }),
      el('text', { x: px(v), y: pad.top + h + 16, 'text-anchor': 'middle' }, label));
  }
  svg.append(el('line', { class: 'axis', x1: pad.left, x2: pad.left + w, y1: pad.top + h, y2: pad.top + h }),
    el('text', { x: pad.left + w, y: height - 5, 'text-anchor': 'end' }, chart.xName),
    el('text', { x: 2, y: 9 }, chart.yName));

  for (const b of bounds) {
    svg.append(el('line', { class: 'slo', x1: pad.left, x2: pad.left + w, y1: py(b.y), y2: py(b.y) }, el('title', {}, b.name)));
  }
  for (const m of marks) {
    svg.append(el('line', { class: 'mark', 'data-mark': m.name, x1: m.at, x2: m.at, y1: pad.top - 5 - 16 * m.level, y2: pad.top + h }, el('title', {}, m.name)));
    if (m.nameless) continue;
    svg.append(el('text', { x: m.flipped ? m.at - 4 : m.at + 4, y: pad.top - 6 - 16 * m.level, 'text-anchor': m.flipped ? 'end' : 'start' }, m.name));
  }
  for (const s of chart.series) {
    let d = '', open = false;
    const dots = [];
    const shown = s.points.filter(p => p[1] !== null).length;
    for (const p of s.points) {
      if (p[1] === null) { open = false; continue; }
      d += `${open ? 'L' : 'M'}${px(p[0]).toFixed(1)} ${py(p[1]).toFixed(1)}`;
      open = true;
      if (chart.dots && !s.plain || shown === 1) {
        dots.push(el('circle', {
          class: 'dot', 'data-series': s.name, cx: px(p[0]).toFixed(1), cy: py(p[1]).toFixed(1), r: 3.2,
          stroke: color(s.color), fill: p[2] ? color('back') : color(s.color),
        }));
      }
    }
    svg.append(el('path', { class: 'line', 'data-series': s.name, d, stroke: color(s.color), 'stroke-dasharray': s.dash || 'none' }), ...dots);
  }

  const xs = [...new Set(chart.series.flatMap(s => s.points.map(p => p[0])))].sort((a, b) => a - b);
  if (!xs.length) return;
  const cross = el('line', { class: 'cross', y1: pad.top, y2: pad.top + h, visibility: 'hidden' });
  const area = el('rect', { x: pad.left, y: pad.top, width: w, height: h, fill: 'transparent' });
  svg.append(cross, area);
  hover(area, event => {
    const box = svg.getBoundingClientRect(), at = (event.clientX - box.left) * width / box.width;
    const x = xs.reduce((best, v) => Math.abs(px(v) - at) < Math.abs(px(best) - at) ? v : best);
    cross.setAttribute('x1', px(x));
    cross.setAttribute('x2', px(x));
    cross.setAttribute('visibility', 'visible');
    const rows = [];
    for (const s of chart.series) {
      const p = s.points.find(q => q[0] === x);
      if (!p || p[1] === null) continue;
      rows.push([s.name, chart.yText(p[1]) + (p[3] ? ' · ' + p[3] : ''), color(s.color)]);
    }
    showTip(event, chart.xText(x), rows);
  }, () => cross.setAttribute('visibility', 'hidden'));
}

// barChart draws rows {name, segments: [{name, color, from, to, text}], end, tick} on one
// scale from 0 to chart.most; end is the text at the end of a row.
function barChart(figure, chart) {
  const widest = text => Math.max(...chart.rows.map(r => textWidth(text(r))));
  const row = 24, pad = { left: 16 + widest(r => r.name), right: 14 + widest(r => r.end || ''), top: 6, bottom: chart.axis ? 36 : 8 };
  const height = pad.top + pad.bottom + row * chart.rows.length;
  const width = widthOf(figure), svg = frame(figure, width, height, chart.legend);
  const w = width - pad.left - pad.right, px = v => pad.left + w * v / chart.most;
  if (chart.axis) {
    const scale = linear(0, chart.most, number), bottom = height - pad.bottom;
    for (const [v, label] of scale.ticks(Math.floor(w / 70))) {
      svg.append(el('line', { class: 'grid', x1: px(v), x2: px(v), y1: pad.top, y2: bottom }),
        el('text', { x: px(v), y: bottom + 15, 'text-anchor': 'middle' }, label));
    }
    svg.append(el('text', { x: pad.left + w, y: height - 4, 'text-anchor': 'end' }, chart.axis));
  }
  chart.rows.forEach((r, i) => {
    const y = pad.top + row * i + 3;
    svg.append(el('text', { class: 'strong', x: pad.left - 8, y: y + 13, 'text-anchor': 'end' }, r.name));
    for (const s of r.segments) {
      const rect = el('rect', {
        class: 'segment', 'data-row': i, 'data-stage': s.name, x: px(s.from).toFixed(2), y, width: Math.max(px(s.to) - px(s.from), 0).toFixed(2),
        height: row - 6, fill: color(s.color),
      });
      hover(rect, event => showTip(event, r.title || r.name, [[s.name, s.text, '']]));
      svg.append(rect);
    }
    if (r.tick !== undefined) {
      svg.append(el('line', { class: 'tick', x1: px(r.tick), x2: px(r.tick), y1: y - 2, y2: y + row - 4 }, el('title', {}, 'first token')));
    }
    if (r.end) {
      svg.append(el('text', { x: pad.left + w + 8, y: y + 13 }, r.end));
    }
  });
}
