// Sorts the table by a column: ascending, descending, then the grid's own order again. Blanks stay last.
for (const table of document.querySelectorAll('table.results')) {
  const headings = [...table.tHead.rows[0].cells];
  const body = table.tBodies[0];
  const original = [...body.rows];
  const said = table.closest('section').querySelector('[role=status]');
  const following = { none: 'ascending', ascending: 'descending', descending: 'none' };

  const compare = (column, sign) => (left, right) => {
    const [a, b] = [left, right].map((row) => row.cells[column].dataset.order);
    if (a === undefined || b === undefined) return (a === undefined) - (b === undefined);
    const difference = Number(a) - Number(b);
    return sign * (Number.isNaN(difference) ? a.localeCompare(b) : difference);
  };

  headings.forEach((heading, column) => {
    heading.querySelector('button').addEventListener('click', () => {
      const order = following[heading.getAttribute('aria-sort')];
      for (const other of headings) other.setAttribute('aria-sort', 'none');
      heading.setAttribute('aria-sort', order);
      const sign = order === 'ascending' ? 1 : -1;
      body.append(...(order === 'none' ? original : [...original].sort(compare(column, sign))));
      said.textContent = order === 'none' ? 'Rows in their own order' : `Sorted by ${heading.innerText}, ${order}`;
    });
  });
}
