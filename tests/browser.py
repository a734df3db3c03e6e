"""A headless Chromium over its debugging pipe (two file descriptors, so nothing to install and no port)."""

import base64
import contextlib
import fcntl
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

EXECUTABLE = next(filter(None, map(shutil.which, ('chromium', 'chromium-browser', 'google-chrome'))), None)
"""Path of the browser, or None where none is installed."""

_FLAGS = (
    '--headless',
    '--no-sandbox',
    '--disable-gpu',
    '--disable-quic',
    '--no-first-run',
    '--disable-background-networking',
    '--disable-component-update',
    '--disable-sync',
    '--remote-debugging-pipe',
)


class Page:
    """One tab. `requests` and `errors` gather what the page asked of the network and what went wrong in it."""

    def __init__(self, commands: int, answers: int):
        self._commands, self._answers, self._buffer = commands, answers, b''
        self._next_id, self._session = 0, ''
        self._loaded = False
        self.requests: list[str] = []
        self.errors: list[str] = []
        target = self.call('Target.createTarget', url='about:blank')['targetId']
        self._session = self.call('Target.attachToTarget', targetId=target, flatten=True)['sessionId']
        for domain in ('Page', 'Network', 'Runtime', 'Log', 'Accessibility'):
            self.call(f'{domain}.enable')

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Sends a command of the DevTools protocol and returns its result."""
        self._next_id += 1
        message = {'id': self._next_id, 'method': method, 'params': params}
        if self._session:
            message['sessionId'] = self._session
        os.write(self._commands, json.dumps(message).encode() + b'\0')
        while (answer := self._receive()).get('id') != self._next_id:
            self._note(answer)
        if 'error' in answer:
            raise RuntimeError(f'{method}: {answer["error"]}')
        return answer['result']

    def open(self, path: Path, width: int, height: int = 900, scheme: str = 'light') -> None:
        """Shows a local file in a window of that size and colour scheme, and waits until it is loaded."""
        self.call(
            'Emulation.setDeviceMetricsOverride', width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        self.call('Emulation.setEmulatedMedia', features=[{'name': 'prefers-color-scheme', 'value': scheme}])
        self.requests, self.errors, self._loaded = [], [], False
        self.call('Page.navigate', url=path.absolute().as_uri())
        deadline = time.monotonic() + 30
        while not self._loaded and time.monotonic() < deadline:
            self._note(self._receive())
        time.sleep(0.3)  # late requests, such as one for an icon
        self.evaluate('0')

    def evaluate(self, script: str) -> Any:
        """Value of a JavaScript expression."""
        answer = self.call('Runtime.evaluate', expression=script, returnByValue=True)
        if 'exceptionDetails' in answer:
            raise RuntimeError(answer['exceptionDetails'])
        return answer['result'].get('value')

    def press(self, key: str, code: int, text: str = '') -> None:
        """Presses and releases a key where the focus is."""
        common = {'key': key, 'code': key, 'windowsVirtualKeyCode': code}
        self.call('Input.dispatchKeyEvent', type='keyDown', text=text, **common)
        self.call('Input.dispatchKeyEvent', type='keyUp', **common)

    def click(self, x: float, y: float) -> None:
        """Presses and releases the left button of the mouse there."""
        for event in ('mousePressed', 'mouseReleased'):
            self.call('Input.dispatchMouseEvent', type=event, x=x, y=y, button='left', clickCount=1)

    def names(self, role: str) -> list[str]:
        """Accessible names of the elements of a role."""
        nodes = self.call('Accessibility.getFullAXTree')['nodes']
        found = [node for node in nodes if not node['ignored'] and node['role']['value'] == role]
        return [node['name']['value'] for node in found]

    def screenshot(self, path: Path) -> None:
        """Writes a PNG of the whole page."""
        image = self.call('Page.captureScreenshot', captureBeyondViewport=True)['data']
        path.write_bytes(base64.b64decode(image))

    def _receive(self) -> dict[str, Any]:
        while b'\0' not in self._buffer:
            block = os.read(self._answers, 1 << 16)
            if not block:
                raise RuntimeError('the browser has gone')
            self._buffer += block
        message, self._buffer = self._buffer.split(b'\0', 1)
        return json.loads(message)

    def _note(self, event: dict[str, Any]) -> None:
        method, params = event.get('method'), event.get('params', {})
        if method == 'Page.loadEventFired':
            self._loaded = True
        elif method == 'Network.requestWillBeSent':
            self.requests.append(params['request']['url'])
        elif method == 'Runtime.exceptionThrown':
            self.errors.append(str(params['exceptionDetails']))
        elif method == 'Runtime.consoleAPICalled' and params['type'] in ('error', 'warning', 'assert'):
            self.errors.append(str(params['args']))
        elif method == 'Log.entryAdded' and params['entry']['level'] in ('error', 'warning'):
            self.errors.append(params['entry']['text'])


@contextlib.contextmanager
def open_page(profile: Path) -> Iterator[Page]:
    """A tab of a fresh browser with its own profile directory."""
    (command_end, commands), (answers, answer_end) = os.pipe(), os.pipe()
    # The browser reads from descriptor 3 and writes to 4; move ours out of the way of these two first.
    ends = [fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (command_end, answer_end)]

    # Moved there by a process of its own: a fork of this one, with JAX's threads in it, could hang.
    connect = 'import os, sys\n'
    connect += ''.join(f'os.dup2({end}, {place}); os.close({end})\n' for end, place in zip(ends, (3, 4), strict=True))
    connect += 'os.execv(sys.argv[1], sys.argv[1:])'
    process = subprocess.Popen(
        [sys.executable, '-c', connect, str(EXECUTABLE), *_FLAGS, f'--user-data-dir={profile}'],
        pass_fds=ends,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    for end in (command_end, answer_end, *ends):
        os.close(end)
    try:
        yield (page := Page(commands, answers))
        page.call('Browser.close')
        process.wait(timeout=20)
    finally:
        process.kill()
        process.wait()
        os.close(commands)
        os.close(answers)
