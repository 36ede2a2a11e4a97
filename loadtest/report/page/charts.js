// The charts of one report, or of several compared. A figure's data-chart says what it
// shows, its data-report of which report; without data-report it shows all.

const data = JSON.parse(document.getElementById('data').textContent);
const several = data.reports.length > 1;
const colors = ['c1', 'c2', 'c3', 'c4', 'c5'];
const dashes = ['none', '6 3', '2 3', '8 3 2 3'];
const stageText = stage => stage.replaceAll('_', ' ');

// over makes the series of each report. With one report, colours tell series apart. With
// several, each report has a colour, and dashes tell its series apart.
function over(reports, kinds, points) {
  return reports.flatMap((r, i) => kinds.map((kind, k) => ({
    name: several ? `${r.name}, ${kind.name}` : kind.name,
    color: several ? colors[i % colors.length] : colors[k % colors.length],
    dash: several ? dashes[k % dashes.length] : kind.dash,
    points: points(r, kind),
  }))).filter(s => s.points.some(p => p[1] !== null));
}

const valuesOf = series => series.flatMap(s => s.points.map(p => p[1])).filter(v => v !== null);
const xsOf = series => series.flatMap(s => s.points.map(p => p[0]));
const orNull = v => v === undefined || v === null ? null : v;

function marksOf(reports) {
  return reports.flatMap(r => {
    const of = several ? ` (${r.name})` : '', out = [];
    if (r.planned !== null) out.push({ x: r.planned, name: 'planned' + of });
    if (r.knee !== null) out.push({ x: r.knee, name: 'knee' + of });
    if (r.breaking !== null) out.push({ x: r.breaking, name: 'breaking point' + of });
    return out;
  });
}

function stepNote(step) {
  return step.passed ? '' : step.verdict;
}

function latencyOverRate(figure, reports) {
  const latency = figure.dataset.latency;
  const kinds = ['p50', 'p90', 'p99'].filter(k => !several || k !== 'p90').map(k => ({ name: k }));
  const series = over(reports, kinds, (r, kind) => r.steps.map(s => [s.rate, orNull(s[latency][kind.name]), !s.passed, stepNote(s)]));
  const bounds = reports.flatMap(r => r.bounds.filter(b => b.latency === latency)).slice(0, 1)
    .map(b => ({ y: b.ms, name: `SLO ${b.percentile} < ${duration(b.ms)}` }));
  if (!series.length) return;
  lineChart(figure, {
    series, dots: true, marks: marksOf(reports), bounds,
    x: linear(0, Math.max(...xsOf(series), 0) * 1.04, number), y: fit(valuesOf(series).concat(bounds.map(b => b.y)), number),
    xName: 'requests/s offered', yName: 'ms', xText: x => number(x) + ' requests/s offered', yText: duration,
  });
}

function throughputOverRate(figure, reports) {
  const kinds = [{ name: 'completed' }];
  if (document.querySelector('[data-chart=attainment]')) kinds.push({ name: 'goodput' }); // otherwise the same curve
  const series = over(reports, kinds, (r, kind) => r.steps.map(s => [s.rate, s[kind.name], !s.passed, stepNote(s)]));
  if (!series.length) return;
  const high = Math.max(...xsOf(series), 0) * 1.04;
  series.push({ name: 'all that is offered', color: 'c5', dash: '2 4', plain: true, points: [[0, 0], [high, high]] });
  lineChart(figure, {
    series, dots: true, marks: marksOf(reports), x: linear(0, high, number), y: linear(0, Math.max(high, ...valuesOf(series)) * 1.02, number),
    xName: 'requests/s offered', yName: 'requests/s', xText: x => number(x) + ' requests/s offered', yText: v => number(v) + '/s',
  });
}

function attainmentOverRate(figure, reports) {
  const kinds = [{ name: 'of those offered', key: 'attainment' }, { name: 'of those completed', key: 'attainment_completed' }].slice(0, several ? 1 : 2);
  const series = over(reports, kinds, (r, kind) => r.steps.map(s => [s.rate, 100 * s[kind.key], !s.passed, stepNote(s)]));
  if (!series.length) return;
  lineChart(figure, {
    series, dots: true, marks: marksOf(reports), x: linear(0, Math.max(...xsOf(series), 0) * 1.04, number), y: linear(0, 104, v => number(v) + '%'),
    xName: 'requests/s offered', yName: '', xText: x => number(x) + ' requests/s offered', yText: v => number(v) + '%',
  });
}

const curveNames = {
  ttft_ms: 'TTFT', ttft_sent_ms: 'TTFT from send', second_token_ms: 'second token', itl_ms: 'ITL', tpot_ms: 'TPOT', e2e_ms: 'E2E',
};

function percentileCurves(figure, reports) {
  const kinds = figure.dataset.curves.split(' ').map((key, k) => ({ key, name: curveNames[key], dash: k === 1 ? '5 3' : undefined }));
  const series = over(reports, kinds, (r, kind) => (r.curves[kind.key] || []).map(p => [p.q, p.ms]));
  if (!series.length) return;
  lineChart(figure, {
    series, x: percentileScale(Math.max(...xsOf(series))), y: fit(valuesOf(series), number),
    xName: 'percentile', yName: 'ms', xText: q => `p${+(100 * q).toFixed(3)}`, yText: duration,
  });
}

// Series over time. Counts become rates by the width of a point.
function overTime(figure, reports) {
  const width = r => r.series.length > 1 ? r.series[1].s - r.series[0].s : 1;
  const kinds = {
    rates: [{ name: 'due', key: 'due', rate: true }, { name: 'ended', key: 'ended', rate: true }, { name: 'failed', key: 'failed', rate: true }],
    backlog: [{ name: 'backlog', key: 'backlog' }],
    ttft: [{ name: 'median', key: 'ttft_p50_ms' }, { name: 'max', key: 'ttft_max_ms' }],
    tpot: [{ name: 'median', key: 'tpot_p50_ms' }, { name: 'max', key: 'tpot_max_ms' }],
    tokens: [{ name: 'tokens', key: 'tokens', rate: true }],
  }[figure.dataset.kind];
  const latency = kinds[0].key.endsWith('_ms');
  const series = over(reports, kinds, (r, kind) => r.series.map(p => [p.s, orNull(p[kind.key]) === null ? null : p[kind.key] / (kind.rate ? width(r) : 1)]))
    .filter(s => !s.name.endsWith('failed') || s.points.some(p => p[1] > 0));
  if (!series.length) return;
  const r = reports[0], shades = several || r.window_s <= 0 ? [] : [{ from: 0, to: r.warmup_s, name: 'warm-up' }];
  const end = Math.max(...xsOf(series));
  lineChart(figure, {
    series, height: 140, shades, x: linear(0, Math.max(end, 1), number), y: fit(valuesOf(series), number, latency ? '' : 'linear'),
    xName: 'seconds', yName: { rates: 'requests/s', backlog: 'requests', tokens: 'tokens/s' }[figure.dataset.kind] || 'ms',
    xText: s => `second ${number(s)}`, yText: v => latency ? duration(v) : number(v),
  });
}

// stageLegend names the visible stages.
const stageLegend = (rows, most) => data.stages.filter(stage => rows.some(r => r.segments.some(s => s.stage === stage && s.to - s.from > most / 500)))
  .map(stage => ({ name: stageText(stage), color: stage, block: true }));

// stack lines up the stages of a breakdown in one bar, in percent if share.
function stack(b, share) {
  let at = 0;
  const unit = share && b.ms > 0 ? 100 / b.ms : 1;
  return data.stages.filter(stage => b.stages_ms[stage] > 0).map(stage => {
    const from = at;
    at += b.stages_ms[stage] * unit;
    const part = b.ms > 0 ? ` (${number(100 * b.stages_ms[stage] / b.ms)}%)` : '';
    return { stage, name: stageText(stage), color: stage, from, to: at, text: duration(b.stages_ms[stage]) + part };
  });
}

function budget(figure, reports) {
  const latency = figure.dataset.latency, rows = [];
  for (const percentile of ['p50', 'p90', 'p99', 'p999']) {
    const shown = percentile.replace('999', '99.9');
    for (const r of reports) {
      const b = r.breakdowns.find(x => x.latency === latency && x.percentile === percentile);
      if (b) rows.push({ name: several ? `${shown} ${r.name}` : shown, title: b.text, segments: stack(b), end: duration(b.ms), ms: b.ms });
    }
  }
  if (!rows.length) return;
  const most = Math.max(...rows.map(r => r.ms), 1e-9);
  barChart(figure, {
    rows, legend: stageLegend(rows, most), most, axis: 'ms',
  });
}

function budgetByRate(figure, reports) {
  const { latency, percentile } = figure.dataset, rows = [];
  const rates = [...new Set(reports.flatMap(r => r.budgets.map(b => b.rate)))].sort((a, b) => a - b);
  for (const rate of rates) {
    for (const r of reports) {
      const at = r.budgets.find(x => x.rate === rate);
      const b = at && at.breakdowns.find(x => x.latency === latency && x.percentile === percentile);
      if (b) rows.push({ name: `${number(rate)}/s` + (several ? ` ${r.name}` : ''), title: b.text, segments: stack(b, true), end: duration(b.ms) });
    }
  }
  if (!rows.length) return;
  barChart(figure, { rows, legend: stageLegend(rows, 100), most: 100, axis: '% of the time' });
}

function waterfall(figure, reports) {
  const latency = figure.dataset.latency;
  const rows = reports[0].slowest.filter(w => w.by === latency).map(w => ({
    name: '#' + w.index, tick: w.ttft_ms, end: duration(w.e2e_ms), e2e: w.e2e_ms,
    title: `#${w.index} ${w.id}: TTFT ${duration(w.ttft_ms)}, E2E ${duration(w.e2e_ms)}, ${w.tokens} tokens` +
      (w.prefill ? `, prefill ${w.prefill}` : '') + (w.decode ? `, decode ${w.decode}` : ''),
    segments: (w.spans || []).map(s => ({
      stage: s.stage, name: stageText(s.stage), color: s.stage, from: s.from_ms, to: s.to_ms,
      text: `${duration(s.to_ms - s.from_ms)}, from ${duration(s.from_ms)} to ${duration(s.to_ms)}`,
    })),
  }));
  if (!rows.length) return;
  const most = Math.max(...rows.map(r => r.e2e), 1e-9);
  barChart(figure, { rows, legend: stageLegend(rows, most), most, axis: 'ms since the request was due' });
}

const charts = {
  'latency-rate': latencyOverRate, throughput: throughputOverRate, attainment: attainmentOverRate, percentiles: percentileCurves,
  time: overTime, budget, 'budget-rate': budgetByRate, waterfall,
};

function drawAll() {
  for (const figure of document.querySelectorAll('figure[data-chart]')) {
    const of = figure.dataset.report;
    charts[figure.dataset.chart](figure, of === undefined ? data.reports : [data.reports[+of]]);
    figure.hidden = !figure.querySelector('svg[role=img]');
  }
}

document.body.append(tip);
drawAll();
let drawnAt = innerWidth, pending = 0;
addEventListener('resize', () => {
  if (innerWidth === drawnAt || pending) return;
  pending = requestAnimationFrame(() => { pending = 0; drawnAt = innerWidth; drawAll(); });
});
