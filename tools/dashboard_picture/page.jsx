import { createRoot } from 'react-dom/client';
import { ThemeContext, createTheme, dateTime, FieldType, getDisplayProcessor, getFieldDisplayName } from '@grafana/data';
import { TimeSeries, BigValue, GlobalStyles, BigValueColorMode, BigValueGraphMode, BigValueTextMode } from '@grafana/ui';
import 'uplot/dist/uPlot.min.css';

// Grafana's panels without Grafana's server: each panel's queries go to Prometheus, and what comes back to Grafana's own components,
// with the panel's units, thresholds, mappings and legend. The page's title tells when it is drawn, and which panels have no data.

const CELL = 60, GAP = 8, HEAD = 28, COLUMNS = 24;
const CUSTOM = { drawStyle: 'line', lineWidth: 1, fillOpacity: 0, pointSize: 5, showPoints: 'auto', spanNulls: false, lineInterpolation: 'linear', axisPlacement: 'auto' };
const theme = createTheme({ colors: { mode: 'dark' } });
const asked = new URLSearchParams(location.search);
const to = Number(asked.get('to')), from = Number(asked.get('from')), step = Number(asked.get('step'));
const timeRange = { from: dateTime(from * 1000), to: dateTime(to * 1000), raw: { from: dateTime(from * 1000), to: dateTime(to * 1000) } };

function filled(expr) {
  return expr.replaceAll('$instance', '.*').replaceAll('$__rate_interval', asked.get('rate'));
}

async function frames(panel) {
  const found = [];
  for (const target of panel.targets) {
    const query = new URLSearchParams({ query: filled(target.expr), start: from, end: to, step });
    const answer = await (await fetch(`/prometheus/api/v1/query_range?${query}`)).json();
    if (answer.status !== 'success') throw new Error(`${panel.title}: ${answer.error}`);
    for (const series of answer.data.result) {
      const legend = (target.legendFormat || '').replace(/\{\{(\w+)\}\}/g, (_, name) => series.metric[name] ?? '');
      const times = [], values = [];
      for (const [at, value] of series.values) { times.push(at * 1000); values.push(value === 'NaN' ? null : Number(value)); }
      found.push({ refId: target.refId, name: legend, length: times.length, fields: [
        { name: 'Time', type: FieldType.time, config: {}, values: times },
        { name: 'Value', type: FieldType.number, config: { displayNameFromDS: legend || undefined }, labels: series.metric, values },
      ] });
    }
  }
  found.forEach((frame, seriesIndex) => {
    const field = frame.fields[1];
    const { custom, ...defaults } = panel.fieldConfig.defaults;
    const color = { mode: panel.type === 'stat' ? 'thresholds' : 'palette-classic' };
    field.config = { color, ...defaults, ...field.config, custom: { ...CUSTOM, ...custom } };
    for (const { matcher, properties } of panel.fieldConfig.overrides) {
      if (matcher.id !== 'byName' || matcher.options !== frame.name) continue;
      for (const { id, value } of properties) field.config[id] = value;
    }
    field.state = { seriesIndex };
    for (const each of frame.fields) each.display = getDisplayProcessor({ field: each, theme, timeZone: 'utc' });
  });
  return found;
}

function Panel({ panel, data, width, height }) {
  if (!data.some((frame) => frame.length)) return <div style={{ padding: 20, color: theme.colors.text.secondary }}>No data</div>;
  if (panel.type === 'stat') {
    const field = data[0].fields[1];
    const value = field.values[field.values.length - 1];
    const shown = { ...field.display(value), title: getFieldDisplayName(field, data[0], data) };
    return <BigValue theme={theme} width={width} height={height} value={shown} colorMode={BigValueColorMode.Value} graphMode={BigValueGraphMode.None} textMode={panel.options.textMode ?? BigValueTextMode.Auto} />;
  }
  return <TimeSeries frames={data} timeRange={timeRange} timeZone="utc" width={width} height={height} legend={{ ...panel.options.legend, calcs: [] }} structureRev={1} />;
}

async function main() {
  const dashboard = await (await fetch('/dashboard.json')).json();
  const unit = (innerWidth - GAP) / COLUMNS;
  const panels = await Promise.all(dashboard.panels.map(async (panel) => [panel, await frames(panel)]));
  const empty = panels.filter(([, data]) => !data.some((frame) => frame.length)).map(([panel]) => panel.title);
  createRoot(document.getElementById('root')).render(
    <ThemeContext.Provider value={theme}>
      <GlobalStyles />
      {panels.map(([panel, data]) => {
        const { x, y, w, h } = panel.gridPos;
        const width = w * unit - GAP, height = h * CELL * 0.6 - GAP;
        return (
          <div key={panel.id} style={{ position: 'absolute', left: x * unit + GAP, top: y * CELL * 0.6 + GAP, width, height, background: theme.colors.background.primary, border: `1px solid ${theme.colors.border.weak}`, overflow: 'hidden' }}>
            <div style={{ height: HEAD, padding: '4px 8px', fontWeight: 500, color: theme.colors.text.primary }}>{panel.title}</div>
            <Panel panel={panel} data={data} width={width - 10} height={height - HEAD - 6} />
          </div>
        );
      })}
    </ThemeContext.Provider>
  );
  document.title = `rendered; empty: ${JSON.stringify(empty)}`;
}
main().catch((error) => { document.body.innerText = String(error.stack); document.title = 'failed'; });
