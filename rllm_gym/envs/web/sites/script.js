// What a plain page cannot do, wired up by data attributes: questions, tabs, dialogs, offers while typing, lists that grow.
document.addEventListener('submit', e => {
  const question = e.target.dataset.confirm;
  if (question && !confirm(question)) e.preventDefault();
});
document.addEventListener('click', e => {
  const at = selector => e.target.closest(selector);
  const tab = at('[data-tab]'), opener = at('[data-open]'), closer = at('[data-close]'), more = at('[data-more]');
  if (tab) {
    const box = tab.closest('.tabs');
    box.querySelectorAll(':scope > .tablist > [role=tab]').forEach(t => t.setAttribute('aria-selected', t === tab));
    box.querySelectorAll(':scope > [role=tabpanel]').forEach((p, i) => { p.hidden = i != tab.dataset.tab; });
  } else if (opener) {
    document.getElementById(opener.dataset.open).showModal();
  } else if (closer) {
    closer.closest('dialog').close();
  } else if (more) {
    more.disabled = true;
    fetch(more.dataset.more).then(r => r.text()).then(text => {
      const part = document.createElement('template');
      part.innerHTML = text;
      more.closest('.more').replaceWith(part.content);
    });
  }
});
document.querySelectorAll('[data-href]').forEach(box => box.addEventListener('click', e => {
  if (!e.target.closest('a, button, input, select, label')) location.assign(box.dataset.href);
}));
document.querySelectorAll('[data-send]').forEach(box => box.addEventListener('click', () => box.closest('form').requestSubmit()));
document.querySelectorAll('select[data-submit]').forEach(s => s.addEventListener('change', () => s.form.requestSubmit()));
document.querySelectorAll('[data-check-all]').forEach(box => box.addEventListener('change', () => {
  document.querySelectorAll('input[name="' + box.dataset.checkAll + '"]').forEach(b => {
    if (b.checked != box.checked) { b.checked = box.checked; b.dispatchEvent(new Event('change', {bubbles: true})); }
  });
}));
document.querySelectorAll('[data-suggest]').forEach(input => {
  const list = input.closest('.suggesting').querySelector('.suggestions');
  let asked = 0;
  input.addEventListener('input', () => {
    const turn = ++asked;
    const typed = input.value.split(',').pop().trim();
    if (!typed) { list.hidden = true; return; }
    fetch(input.dataset.suggest + '?q=' + encodeURIComponent(typed)).then(r => r.json()).then(texts => {
      if (turn !== asked) return;
      list.replaceChildren(...texts.map(text => {
        const item = document.createElement('li');
        item.setAttribute('role', 'option');
        item.textContent = text;
        item.addEventListener('mousedown', e => e.preventDefault());
        item.addEventListener('click', () => {
          const kept = input.value.split(',').slice(0, -1).map(s => s.trim());
          input.value = input.hasAttribute('data-several') ? [...kept, text].join(', ') : text;
          list.hidden = true;
        });
        return item;
      }));
      list.hidden = !texts.length;
    });
  });
});
