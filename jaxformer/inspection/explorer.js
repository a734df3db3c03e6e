const { examples } = JSON.parse(document.getElementById('data').textContent);
const [example, layer, head, canvas, overview, reading, kinds] =
  ['example', 'layer', 'head', 'map', 'overview', 'reading', 'kinds'].map((id) => document.getElementById(id));
const FONT = 12;
let part, weights, hidden, cell, left, above;
let cursor = [0, 0];

for (const one of examples)
  for (const kind of one.kinds) {
    const bytes = Uint8Array.from(atob(kind.weights), (character) => character.charCodeAt(0));
    kind.weights = new Float32Array(bytes.buffer);
  }

// The weights [T · S] of a head, by its places in the part.
const ofHead = (part, layer, head) => {
  const size = part.rows.length * part.columns.length;
  const start = (layer * part.heads.length + head) * size;
  return part.weights.subarray(start, start + size);
};

const fill = (select, names) => {
  const kept = Math.min(Math.max(select.selectedIndex, 0), names.length - 1);
  select.replaceChildren(...names.map((name, index) => new Option(name, index)));
  select.selectedIndex = kept;
};

const colours = () => {
  const style = getComputedStyle(document.documentElement);
  return Object.fromEntries(['ink', 'faint', 'hair', 'wash', 'weight', 'accent'].map((name) => [name, style.getPropertyValue(`--${name}`)]));
};

const sized = (target, width, height) => {
  const ratio = devicePixelRatio || 1;
  [target.width, target.height] = [width * ratio, height * ratio];
  [target.style.width, target.style.height] = [`${width}px`, `${height}px`];
  const context = target.getContext('2d');
  context.scale(ratio, ratio);
  return context;
};

const cells = (context, colour, part, weights, hidden, x0, y0, size) => {
  const S = part.columns.length;
  weights.forEach((weight, index) => {
    const [x, y] = [x0 + (index % S) * size, y0 + Math.floor(index / S) * size];
    const gap = size >= 12 ? 1 : 0;
    context.globalAlpha = 1;
    context.fillStyle = colour.wash;
    context.fillRect(x, y, size - gap, size - gap);
    context.globalAlpha = weight;
    context.fillStyle = colour.weight;
    context.fillRect(x, y, size - gap, size - gap);
    if (hidden[index] === '1' && size >= 5) {
      context.globalAlpha = 1;
      context.strokeStyle = colour.hair;
      context.beginPath();
      context.moveTo(x, y + size);
      context.lineTo(x + size, y);
      context.stroke();
    }
  });
  context.globalAlpha = 1;
};

const draw = () => {
  const { rows, columns } = part;
  const colour = colours();
  const measure = document.createElement('canvas').getContext('2d');
  const font = `${FONT}px ${getComputedStyle(document.body).fontFamily}`;
  measure.font = font;
  const widest = (names) => Math.min(110, Math.ceil(Math.max(...names.map((name) => measure.measureText(name).width)))) + 8;
  left = widest(rows);
  above = widest(columns);
  const room = document.getElementById('scroll').clientWidth - 6 - left;
  cell = Math.max(4, Math.min(44, Math.floor(room / columns.length), Math.floor(760 / rows.length)));
  const context = sized(canvas, left + cell * columns.length + 1, above + cell * rows.length + 1);
  context.font = font;
  cells(context, colour, part, weights, hidden, left, above, cell);
  const every = Math.ceil((FONT + 1) / cell);
  context.textBaseline = 'middle';
  rows.forEach((name, t) => {
    if (t % every && t !== cursor[0]) return;
    context.fillStyle = t === cursor[0] ? colour.ink : colour.faint;
    context.textAlign = 'right';
    context.fillText(name, left - 5, above + (t + 0.5) * cell, left - 6);
  });
  columns.forEach((name, s) => {
    if (s % every && s !== cursor[1]) return;
    context.save();
    context.translate(left + (s + 0.5) * cell, above - 5);
    context.rotate(-Math.PI / 2);
    context.fillStyle = s === cursor[1] ? colour.ink : colour.faint;
    context.textAlign = 'left';
    context.fillText(name, 0, 0, above - 6);
    context.restore();
  });
  context.strokeStyle = colour.accent;
  context.lineWidth = 2;
  context.strokeRect(left + cursor[1] * cell + 1, above + cursor[0] * cell + 1, cell - 2, cell - 2);
};

const read = () => {
  const [t, s] = cursor;
  const index = t * part.columns.length + s;
  const written = part.written ? ` (writing ${part.written[t]})` : '';
  const weight = hidden[index] === '1' ? 'cannot be seen' : weights[index].toFixed(4);
  reading.textContent = `${part.rows[t]}${written} → ${part.columns[s]}: ${weight}`;
  reading.dataset.weight = weights[index];
  draw();
};

const show = () => {
  weights = ofHead(part, layer.selectedIndex, head.selectedIndex);
  hidden = part.hidden[layer.selectedIndex];
  const place = `layer ${part.layers[layer.selectedIndex]}, head ${part.heads[head.selectedIndex]}`;
  document.getElementById('map-title').textContent = `${part.title}, ${place}`;
  const summary = part.summary[layer.selectedIndex][head.selectedIndex];
  document.getElementById('about').textContent = `${summary} ${part.about}`;
  for (const button of overview.querySelectorAll('button')) {
    const chosen = button.dataset.place === `${layer.selectedIndex},${head.selectedIndex}`;
    button.setAttribute('aria-pressed', chosen);
    button.tabIndex = chosen ? 0 : -1;
  }
  cursor = [Math.min(cursor[0], part.rows.length - 1), Math.min(cursor[1], part.columns.length - 1)];
  read();
};

const thumbnails = () => {
  const colour = colours();
  const { rows, columns, layers, heads } = part;
  const size = Math.max(1, Math.min(6, Math.floor(64 / Math.max(rows.length, columns.length))));
  overview.style.gridTemplateColumns = `repeat(${heads.length + 1}, max-content)`;
  const label = (text) => Object.assign(document.createElement('span'), { textContent: text });
  const items = [label(''), ...heads.map((number) => label(number))];
  layers.forEach((number, l) => {
    items.push(label(number));
    heads.forEach((other, h) => {
      const button = document.createElement('button');
      const small = document.createElement('canvas');
      button.type = 'button';
      button.dataset.place = `${l},${h}`;
      button.title = part.summary[l][h];
      button.setAttribute('aria-label', `Layer ${number}, head ${other}: ${part.summary[l][h]}`);
      cells(sized(small, columns.length * size, rows.length * size), colour, part, ofHead(part, l, h), part.hidden[l], 0, 0, size);
      button.append(small);
      button.addEventListener('click', () => pick(l, h));
      items.push(button);
    });
  });
  overview.replaceChildren(...items);
};

const pick = (l, h) => {
  [layer.selectedIndex, head.selectedIndex] = [l, h];
  show();
};

const choosePart = () => {
  const wanted = kinds.querySelector(':checked').value;
  part = examples[example.selectedIndex].kinds.find((one) => one.kind === wanted);
  fill(layer, part.layers);
  fill(head, part.heads);
  thumbnails();
  show();
};

const steps = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1], Home: [0, -Infinity], End: [0, Infinity] };
const within = (value, size) => Math.min(Math.max(value, 0), size - 1);

canvas.addEventListener('keydown', (event) => {
  const step = steps[event.key];
  if (!step) return;
  event.preventDefault();
  cursor = [within(cursor[0] + step[0], part.rows.length), within(cursor[1] + step[1], part.columns.length)];
  read();
});

const point = (event) => {
  const [t, s] = [Math.floor((event.offsetY - above) / cell), Math.floor((event.offsetX - left) / cell)];
  if (t < 0 || s < 0 || t >= part.rows.length || s >= part.columns.length) return;
  cursor = [t, s];
  read();
};
for (const kind of ['pointermove', 'pointerdown']) canvas.addEventListener(kind, point);

overview.addEventListener('keydown', (event) => {
  const step = steps[event.key];
  if (!step) return;
  event.preventDefault();
  pick(within(layer.selectedIndex + step[0], part.layers.length), within(head.selectedIndex + step[1], part.heads.length));
  overview.querySelector('[aria-pressed=true]').focus();
});

fill(example, examples.map((one) => one.text));
examples[0].kinds.forEach((one, index) => {
  const label = document.createElement('label');
  const input = Object.assign(document.createElement('input'), { type: 'radio', name: 'kind', value: one.kind, checked: index === examples[0].kinds.length - 1 });
  label.append(input, one.kind);
  kinds.append(label);
});
document.getElementById('without').textContent = examples[0].without;
document.getElementById('choice').addEventListener('change', (event) => (event.target === layer || event.target === head ? show() : choosePart()));
addEventListener('resize', draw);
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', choosePart);
choosePart();
