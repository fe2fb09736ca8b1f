package console_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
)

// browser is the process that all tests share. It is started by the first one, and stopped after the last one.
var browser = struct {
	sync.Mutex
	ctx context.Context
}{}

func startBrowser(t testing.TB) context.Context {
	t.Helper()
	path := devtest.Chromium(t)
	browser.Lock()
	defer browser.Unlock()
	if browser.ctx != nil {
		return browser.ctx
	}
	dir, err := os.MkdirTemp("", "millrace-chromium-") //nolint:usetesting // all tests share it
	require.NoError(t, err)
	allocator, free := chromedp.NewExecAllocator(context.Background(), append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(path), chromedp.UserDataDir(dir), chromedp.NoSandbox)...)
	ctx, cancel := chromedp.NewContext(allocator)
	if err := chromedp.Do(ctx); err != nil {
		cancel()
		free()
		require.NoError(t, errors.Join(err, os.RemoveAll(dir)), "start the browser")
	}
	devtest.AtEnd(func() error {
		ending, late := context.WithTimeout(ctx, wait)
		defer late()
		err := chromedp.Cancel(ending)
		free()
		return errors.Join(err, gone(dir), os.RemoveAll(dir))
	})
	browser.ctx = ctx
	return ctx
}

// gone waits until no process of the browser is left.
func gone(dir string) error {
	for deadline := time.Now().Add(wait); ; time.Sleep(pause) {
		left := 0
		processes, err := filepath.Glob("/proc/[0-9]*/cmdline")
		if err != nil {
			return err
		}
		for _, file := range processes {
			line, err := os.ReadFile(file)
			if err == nil && bytes.Contains(line, []byte(dir)) {
				left++
			}
		}
		switch {
		case left == 0:
			return nil
		case time.Now().After(deadline):
			return fmt.Errorf("%d processes of the browser are left", left)
		}
	}
}

// tab is a page in the browser, in a session of its own.
type tab struct {
	t    testing.TB
	s    *site
	ctx  context.Context
	said struct {
		sync.Mutex
		messages []chromedp.ConsoleMessage
	}
	checks int
}

func (s *site) tab(t testing.TB) *tab {
	t.Helper()
	b := &tab{t: t, s: s}
	ctx, cancel := chromedp.NewContext(startBrowser(t), chromedp.WithNewBrowserContext())
	b.ctx = ctx
	if err := chromedp.Do(ctx); err != nil { // opens it, without a deadline, which would end it
		cancel()
		require.NoError(t, err)
	}
	var listening sync.WaitGroup
	messages := chromedp.Console(ctx)
	listening.Go(func() {
		for m, err := range messages {
			if err != nil {
				return // the tab is closed
			}
			b.said.Lock()
			b.said.messages = append(b.said.messages, m)
			b.said.Unlock()
		}
	})
	t.Cleanup(func() {
		cancel()
		listening.Wait()
	})
	_, err := chromedp.Call(ctx, emulation.SetFocusEmulationEnabled, emulation.SetFocusEmulationEnabledParams{Enabled: true}) // else one tab has the focus
	require.NoError(t, err)
	b.size(1440, 1000)
	return b
}

// do runs steps that must end soon.
func (b *tab) do(steps ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, wait)
	defer cancel()
	require.NoError(b.t, chromedp.Do(ctx, steps...))
}

// open loads a page, and forgets what the browser said of the one before.
func (b *tab) open(path string) {
	b.t.Helper()
	b.wrong()
	b.do(chromedp.Navigate(b.s.server.URL + b.s.base + path))
}

func (b *tab) size(width, height int64) { b.do(chromedp.EmulateViewport(width, height)) }

// prefers sets what the person has set in the system: dark or light.
func (b *tab) prefers(scheme string) {
	b.t.Helper()
	_, err := chromedp.Call(b.ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}})
	require.NoError(b.t, err)
}

// script evaluates JavaScript in the page of a tab.
func script[T any](b *tab, text string) (T, error) {
	ctx, cancel := context.WithTimeout(b.ctx, wait)
	defer cancel()
	return chromedp.Run(ctx, chromedp.Evaluate[T](text, chromedp.EvalAwaitPromise))
}

// value is script where the page stays.
func value[T any](b *tab, text string) T {
	b.t.Helper()
	v, err := script[T](b, text)
	require.NoError(b.t, err, text)
	return v
}

// until waits until an expression is true, on whichever page that is.
func (b *tab) until(condition string) {
	b.t.Helper()
	var err error
	for deadline := time.Now().Add(wait); time.Now().Before(deadline); time.Sleep(pause) {
		var yes bool
		if yes, err = script[bool](b, "Boolean("+condition+")"); err == nil && yes { // it fails while another page is loaded
			return
		}
	}
	page, _ := script[string](b, `location.href + ": " + document.body.innerText`)
	require.FailNow(b.t, "the page never fulfils "+condition, "%v\n%s", err, page)
}

const pageText = `document.querySelector("main").textContent.replace(/\s+/g, " ")`

// shows waits until the page has a text, whichever page that is.
func (b *tab) shows(text string) {
	b.t.Helper()
	b.until(pageText + ".includes(" + strconv.Quote(text) + ")")
}

// press clicks the link or button whose words begin with the text, once it is there. A person can see it, and nothing lies upon it.
func (b *tab) press(words string) {
	b.t.Helper()
	b.until(`(() => {
		const e = [...document.querySelectorAll("a, button")].find((e) => e.checkVisibility() && e.textContent.trim().replace(/\s+/g, " ").startsWith(` + strconv.Quote(words) + `));
		if (!e) return false;
		e.scrollIntoView({ block: "center" });
		const r = e.getBoundingClientRect(), at = document.elementFromPoint(r.x + r.width / 2, r.y + r.height / 2);
		if (!e.contains(at)) return false;
		e.click();
		return true;
	})()`)
}

// fill writes into a field.
func (b *tab) fill(id, text string) {
	b.t.Helper()
	b.until(`document.getElementById(` + strconv.Quote(id) + `)`)
	b.until(`(document.getElementById(` + strconv.Quote(id) + `).value = ` + strconv.Quote(text) + `, true)`)
}

// keys presses keys one after the other. A key writes nothing where the page has used it.
func (b *tab) keys(keys string) {
	b.t.Helper()
	for _, r := range keys {
		events := kb.Encode(r)
		for _, e := range events {
			if e.Type == kb.KeyChar { // the browser makes it, of a key that has a text
				continue
			}
			if e.Type == kb.KeyDown {
				e.Text = events[1].Text
			}
			_, err := chromedp.Call(b.ctx, input.DispatchKeyEvent, *e)
			require.NoError(b.t, err)
		}
	}
}

// wrong returns the errors and warnings that the browser has told since it was asked last, violations of the policy among them.
func (b *tab) wrong() (messages []string) {
	b.t.Helper()
	b.checks++
	mark := fmt.Sprint("checked ", b.checks)
	value[chromedp.Void](b, `console.debug(`+strconv.Quote(mark)+`)`)
	require.Eventually(b.t, func() bool {
		b.said.Lock()
		defer b.said.Unlock()
		return slices.ContainsFunc(b.said.messages, func(m chromedp.ConsoleMessage) bool { return m.Text == mark })
	}, wait, pause, "the browser says nothing")
	b.said.Lock()
	defer b.said.Unlock()
	for _, m := range b.said.messages {
		if m.Type == chromedp.ConsoleError || m.Type == chromedp.ConsoleException || m.Type == chromedp.ConsoleWarning {
			messages = append(messages, m.String())
		}
	}
	b.said.messages = nil
	return messages
}

// The browser tells of what the policy forbids and of what fails: otherwise no test could.
func TestTheBrowserTellsWhatIsWrong(t *testing.T) {
	t.Parallel()
	s := open(t, everything)
	b := s.tab(t)
	b.open("/")
	require.Empty(t, b.wrong())
	value[chromedp.Void](b, `document.body.insertAdjacentHTML("beforeend", "<p style='color: red' onclick='alert(1)'>x</p><img src='https://millrace.invalid/x.png'>")`)
	all := strings.Join(b.wrong(), "\n")
	for _, directive := range []string{"style-src", "script-src", "img-src"} {
		require.Contains(t, all, directive)
	}
	b.open("/")
	value[chromedp.Void](b, `void setTimeout(() => { throw new Error("oops"); })`)
	value[chromedp.Void](b, `new Promise((done) => setTimeout(done, 10))`)
	require.Contains(t, strings.Join(b.wrong(), "\n"), "oops")
}
